"""Whatever a server sends: an event is read, or the call fails with an error of the engine. Never anything else."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforgerl.engines.sglang_wire import SglangWire
from openforgerl.engines.upstream import WIRES
from openforgerl.engines.vllm_wire import VllmWire
from openforgerl.engines.wire import Asked, Wire
from openforgerl.errors import EngineError
from openforgerl.records import EngineFinish, GenerateRequest, Sampling

PROMPT = (5, 6)
STOP = 2
LIMIT = 3
SCALARS = st.none() | st.booleans() | st.integers(-3, 200) | st.floats() | st.text(max_size=3) | st.just(2**40)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)


def mostly(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 40).flatmap(lambda odd: ANYTHING if odd == 40 else value)


def shape(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    return mostly(st.fixed_dictionaries({name: mostly(each) for name, each in fields.items()}))


SAMPLED = st.lists(st.sampled_from([7, 8, 9, 7, 8, STOP]), max_size=3)
REASON = st.sampled_from([None, None, None, "stop", "length", "abort", "tool_calls", "end_turn", "tool_use"])


def completion(ids: list[int]) -> st.SearchStrategy[Any]:
    """An event of vLLM's that brings these ids, or tells a lie."""
    choice = {
        "prompt_token_ids": st.just(list(PROMPT)),
        "token_ids": st.just(ids) | st.tuples(*map(mostly, map(st.just, ids))).map(list),
        "logprobs": shape({"token_logprobs": st.tuples(*[mostly(st.floats(-20, 0)) for _ in ids]).map(list)}),
        "finish_reason": REASON,
        "stop_reason": st.none(),
    }
    return shape({"choices": st.lists(shape(choice), min_size=1, max_size=1)})


def generation(ids: list[int]) -> st.SearchStrategy[Any]:
    """An event of SGLang's that brings all ids so far, or tells a lie."""
    pairs = [st.tuples(mostly(st.floats(-20, 0)), mostly(st.just(token)), st.none()) for token in ids]
    meta = {
        "prompt_token_ids": st.just(list(PROMPT)),
        "output_token_logprobs": st.tuples(*map(mostly, pairs)).map(list),
        "completion_tokens": st.just(len(ids)),
        "finish_reason": st.none() | shape({"type": REASON, "matched": st.none()}),
    }
    return shape({"meta_info": shape(meta)})


def so_far(parts: list[list[int]]) -> list[list[int]]:
    return [[token for part in parts[: count + 1] for token in part] for count in range(len(parts))]


PARTS = st.lists(SAMPLED, min_size=1, max_size=5)
VLLM = PARTS.flatmap(lambda parts: st.tuples(*map(completion, parts)).map(list))
SGLANG = PARTS.flatmap(lambda parts: st.tuples(*map(generation, so_far(parts))).map(list))
NAMES = st.sampled_from([None, "a", "b", "c"])
CHAT = shape(
    {
        "choices": st.lists(
            shape(
                {
                    "delta": shape(
                        {
                            "content": st.text(max_size=3),
                            "reasoning_content": st.text(max_size=3),
                            "tool_calls": st.lists(
                                shape(
                                    {
                                        "index": st.integers(0, 1),
                                        "id": NAMES,
                                        "function": shape({"name": NAMES, "arguments": st.sampled_from(["", "{}"])}),
                                    }
                                ),
                                max_size=4,
                            ),
                        }
                    ),
                    "finish_reason": REASON,
                }
            ),
            max_size=1,
        )
    }
)
MESSAGES = shape(
    {
        "type": st.sampled_from(["content_block_start", "content_block_delta", "message_delta", "ping", "error"]),
        "index": st.integers(0, 2),
        "content_block": shape({"type": st.sampled_from(["text", "tool_use"]), "id": NAMES, "name": NAMES}),
        "delta": shape({"text": st.text(max_size=3), "partial_json": st.text(max_size=3), "stop_reason": REASON}),
    }
)


def bytes_of(event: object) -> bytes:
    return orjson.dumps(event, option=orjson.OPT_NON_STR_KEYS)


def read(reader: Any, events: list[Any]) -> list[Any]:
    """What came before the first fault."""
    got: list[Any] = []
    for event in events:
        try:
            got.append(reader.read(bytes_of(event)))
        except EngineError:
            break
    return got


@pytest.mark.parametrize(("wire", "events"), [(VllmWire(), VLLM), (SglangWire(), SGLANG)])
@given(data=st.data())
def test_ids_that_are_taken_are_sound(wire: Wire, events: st.SearchStrategy[Any], data: st.DataObject) -> None:
    request = GenerateRequest(
        request_id="r", session_id="s", prompt_ids=PROMPT, sampling=Sampling(max_tokens=LIMIT), stop_ids=(STOP,)
    )
    asked = Asked(request=request, before=(), limit=LIMIT, model="m", policy_version=0)
    pieces = read(wire.reader(asked), data.draw(events))
    ids = [token for piece in pieces for token in piece.ids]
    logprobs = [value for piece in pieces for value in piece.logprobs]
    finishes = [piece.finish for piece in pieces if piece.finish is not None]
    assert len(ids) == len(logprobs) <= LIMIT
    assert all(type(token) is int and 0 <= token < 2**31 for token in ids)
    assert all(-9999 < value < 1e300 for value in logprobs)
    assert STOP not in ids[:-1]
    assert len(finishes) <= 1
    assert EngineFinish.LENGTH not in finishes or len(ids) == LIMIT


READERS: list[tuple[Callable[[], Any], st.SearchStrategy[Any]]] = [
    (WIRES["openai"].reader, st.lists(CHAT, max_size=5)),
    (WIRES["anthropic"].reader, st.lists(MESSAGES, max_size=5)),
]


@pytest.mark.parametrize(("make", "events"), READERS, ids=["openai", "anthropic"])
@given(data=st.data())
def test_tool_calls_of_a_text_api_are_in_order(
    make: Callable[[], Any], events: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    from openforgerl.records import ToolArgumentsDelta, ToolCallEnded, ToolCallStarted

    running: int | None = None
    started = 0
    for said in read(make(), data.draw(events)):
        for event in said.events:
            if isinstance(event, ToolCallStarted):
                assert (running, event.index) == (None, started)
                running, started = event.index, started + 1
            elif isinstance(event, ToolArgumentsDelta):
                assert event.index == running
            elif isinstance(event, ToolCallEnded):
                assert event.index == running
                running = None
