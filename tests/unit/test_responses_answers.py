"""Responses answers: a strict state machine of events, and a plain body that says the same."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from openforgerl.dialects.marks import signed_call
from openforgerl.dialects.responses_calls import FORMS, Route, arguments_of, input_of
from openforgerl.dialects.responses_events import ResponsesRenderer
from openforgerl.records import (
    CallEvent,
    CallFailed,
    CallFinished,
    CallStarted,
    Finish,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)
from responses_stream import StreamReader, WrongStreamError, events_of, read_stream

STARTED = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=30)
USAGE = Usage(prompt_tokens=30, sampled_tokens=4, cached_tokens=20)
ROUTES = {
    "patch": Route(kind="custom", name="patch"),
    "crm__read": Route(name="read", namespace="crm"),
    "crm__write": Route(kind="custom", name="write", namespace="crm"),
    **{form.name: Route(kind=kind, name=form.name) for kind, form in FORMS.items() if kind != "computer_use_preview"},
}
TWO_CALLS: list[CallEvent] = [
    ReasoningDelta(text="h"),
    ReasoningDelta(text="m"),
    TextDelta(text="I "),
    TextDelta(text="look."),
    ToolCallStarted(index=0, id="call1", name="bash"),
    ToolArgumentsDelta(index=0, text='{"a": '),
    ToolArgumentsDelta(index=0, text="1.0}"),
    ToolCallEnded(index=0),
    ToolCallStarted(index=1, id="call2", name="patch"),
    ToolArgumentsDelta(index=1, text='{"input": "*** Begin\\nü"}'),
    ToolCallEnded(index=1),
]


def called(name: str, arguments: str) -> list[CallEvent]:
    return [
        ToolCallStarted(index=0, id="c1", name=name),
        ToolArgumentsDelta(index=0, text=arguments),
        ToolCallEnded(index=0),
    ]


def rendered(
    events: Sequence[CallEvent], finish: Finish = Finish.STOP, *, summarizes: bool = False
) -> tuple[bytes, dict[str, Any]]:
    """The stream, and the plain body."""
    renderer = ResponsesRenderer(model="m", routes=ROUTES, summarizes=summarizes, echo={"metadata": {"a": "b"}})
    raw = b"".join(renderer.chunk(event) for event in (STARTED, *events, CallFinished(finish=finish, usage=USAGE)))
    return raw, json.loads(renderer.whole())


def item(name: str, arguments: str) -> dict[str, Any]:
    """The item of one call, the same in both forms."""
    raw, body = rendered(called(name, arguments), Finish.TOOL_CALLS)
    assert read_stream(raw).response == body
    (found,) = body["output"]
    assert found["call_id"] == "c1"
    assert found["status"] == "completed"
    return {key: value for key, value in found.items() if key not in ("id", "call_id", "status")}


def kinds(raw: bytes) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events_of(raw)]


def test_stream_and_plain_body_say_the_same() -> None:
    raw, body = rendered(TWO_CALLS, Finish.TOOL_CALLS)
    assert read_stream(raw).response == body
    assert [(each["type"], each["id"]) for each in body["output"]] == [
        ("reasoning", "rs_abc_0"), ("message", "msg_abc_1"), ("function_call", "fc_abc_2"),
        ("custom_tool_call", "ctc_abc_3"),
    ]  # fmt: skip
    assert body["output"][2]["arguments"] == '{"a": 1.0}'
    assert body["output"][3]["input"] == "*** Begin\nü"
    assert (body["id"], body["object"], body["created_at"], body["model"]) == ("resp_abc", "response", 5, "m")
    assert (body["status"], body["error"], body["incomplete_details"]) == ("completed", None, None)
    assert (body["metadata"], body["store"], body["previous_response_id"]) == ({"a": "b"}, False, None)


def test_the_events_of_an_answer_come_in_the_order_of_the_format() -> None:
    def text(kind: str) -> list[str]:
        delta = [f"{kind}.delta"] * 2
        return [
            "output_item.added", "content_part.added", *delta, f"{kind}.done", "content_part.done", "output_item.done",
        ]  # fmt: skip

    assert kinds(rendered(TWO_CALLS)[0]) == [
        "created", "in_progress", *text("reasoning_text"), *text("output_text"),
        "output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done", "output_item.done",
        "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done",
        "completed",
    ]  # fmt: skip


def test_reasoning_is_text_that_carries_the_mark_of_its_call() -> None:
    _, body = rendered(TWO_CALLS)
    reasoning = body["output"][0]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert reasoning["summary"] == []
    assert signed_call(reasoning["encrypted_content"]) == "abc"


def test_reasoning_is_a_summary_where_one_was_asked_for() -> None:
    raw, body = rendered(TWO_CALLS, summarizes=True)
    assert read_stream(raw).response == body
    assert body["output"][0]["summary"] == [{"type": "summary_text", "text": "hm"}]
    assert body["output"][0]["content"] == []
    assert kinds(raw)[2:9] == [
        "output_item.added", "reasoning_summary_part.added", *["reasoning_summary_text.delta"] * 2,
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
    ]  # fmt: skip


def test_an_answer_without_anything_has_no_items() -> None:
    raw, body = rendered([TextDelta(text="")])
    assert body["output"] == []
    assert read_stream(raw).response == body


def test_text_between_calls_is_a_message_of_its_own() -> None:
    raw, body = rendered([*called("bash", "{}"), TextDelta(text="and"), *called("bash", "{}")])
    assert [each["type"] for each in body["output"]] == ["function_call", "message", "function_call"]
    assert read_stream(raw).response == body


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.STOP_STRING, Finish.TOOL_CALLS])
def test_an_answer_that_ended_is_completed(finish: Finish) -> None:
    raw, body = rendered([TextDelta(text="x")], finish)
    assert (body["status"], kinds(raw)[-1]) == ("completed", "completed")
    assert read_stream(raw).response == body


def test_an_answer_that_was_cut_is_incomplete_and_so_is_its_last_item() -> None:
    raw, body = rendered([ReasoningDelta(text="h"), TextDelta(text="x")], Finish.LENGTH)
    assert (body["status"], kinds(raw)[-1]) == ("incomplete", "incomplete")
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [each["status"] for each in body["output"]] == ["completed", "incomplete"]
    assert read_stream(raw).response == body


def test_usage_is_whole_and_stands_at_the_end() -> None:
    _, body = rendered([TextDelta(text="x")])
    assert body["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 34,
    }


def test_empty_arguments_are_an_empty_object() -> None:
    assert item("bash", "")["arguments"] == "{}"
    assert json.loads(item("bash", " \n")["arguments"]) == {}


def test_a_tool_of_a_namespace_is_named_as_it_was_offered() -> None:
    assert item("crm__read", '{"a": 1}') == {
        "type": "function_call", "namespace": "crm", "name": "read", "arguments": '{"a": 1}',
    }  # fmt: skip
    assert item("crm__write", '{"input": "x"}') == {
        "type": "custom_tool_call", "namespace": "crm", "name": "write", "input": "x",
    }  # fmt: skip


def test_a_tool_that_was_not_offered_is_called_by_the_name_that_the_model_said() -> None:
    assert item("never", "{}") == {"type": "function_call", "name": "never", "arguments": "{}"}


@pytest.mark.parametrize(
    ("name", "arguments", "members"),
    [
        (
            "local_shell",
            '{"command": ["ls", "-a"], "timeout_ms": 50}',
            {"action": {"type": "exec", "env": {}, "command": ["ls", "-a"], "timeout_ms": 50}},
        ),
        ("shell", '{"commands": ["ls"]}', {"action": {"commands": ["ls"]}}),
        (
            "apply_patch",
            '{"type": "delete_file", "path": "a"}',
            {"operation": {"type": "delete_file", "path": "a"}},
        ),
        (
            "computer",
            '{"actions": [{"type": "click", "x": 1, "y": 2}]}',
            {"actions": [{"type": "click", "x": 1, "y": 2}], "pending_safety_checks": []},
        ),
        ("tool_search", '{"query": "x"}', {"execution": "client", "arguments": {"query": "x"}}),
    ],
)
def test_client_side_tools_are_called_by_items_of_their_own(
    name: str, arguments: str, members: dict[str, object]
) -> None:
    assert item(name, arguments) == {"type": f"{name}_call", **members}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("local_shell", "{}"),
        ("local_shell", '{"command": []}'),
        ("local_shell", '{"command": "ls"}'),
        ("local_shell", '{"command": ["ls", 1]}'),
        ("local_shell", '{"command": ["ls"], "timeout_ms": 5.0}'),
        ("local_shell", '{"command": ["ls"], "timeout_ms": null}'),
        ("local_shell", '{"command": ["ls"], "type": "x"}'),
        ("local_shell", '{"command": ["ls"], "env": {}}'),
        ("shell", '{"commands": ["ls"], "max_output_length": "5"}'),
        ("apply_patch", '{"type": "update_file", "path": "a"}'),
        ("apply_patch", '{"type": "move_file", "path": "a"}'),
        ("apply_patch", '{"type": ["x"], "path": 1}'),
        ("computer", '{"actions": [1]}'),
        ("computer", '{"actions": [], "more": 1}'),
        ("tool_search", "[]"),
        ("tool_search", "no json"),
    ],
)
def test_arguments_that_an_item_cannot_carry_are_a_function_call(name: str, arguments: str) -> None:
    assert item(name, arguments) == {"type": "function_call", "name": name, "arguments": arguments}


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        ('{"input": "*** Begin Patch\\n\\"x\\""}', '*** Begin Patch\n"x"'),
        ('{"input": ""}', ""),
        ('{"input": "{"}', "{"),
        ('{"input": "[1]"}', "[1]"),
        ('{"input": "{\\"input\\": \\"x\\"}"}', '{"input": "x"}'),
        ('{"input": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"patch": "x"}', 'no "input" in {"patch": "x"}'),
        ('{"input": "x", "more": 1.0}', 'no "input" in {"input": "x", "more": 1.0}'),
        ('{"input": 1}', 'no "input" in {"input": 1}'),
        ("{}", 'no "input" in {}'),
        ("", 'no "input" in {}'),
    ],
)
def test_the_input_of_a_freeform_call_comes_back_as_its_arguments(arguments: str, given: str) -> None:
    assert input_of(arguments) == given
    assert json.loads(arguments_of(given)) == json.loads(arguments or "{}")


@pytest.mark.parametrize("name", ["bash", "patch"])
@pytest.mark.parametrize("arguments", ["[1]", "no json", '{"input": "\\ud83d"}', "[" * 100_000])
def test_odd_arguments_are_delivered_without_a_crash(name: str, arguments: str) -> None:
    found = item(name, arguments)
    assert found["type"] == ("function_call" if name == "bash" else "custom_tool_call")


@pytest.mark.parametrize(
    ("status", "code", "told"),
    [
        (500, "internal_error", "server_error"),
        (503, "engine_aborted", "server_error"),
        (429, "busy", "rate_limit_exceeded"),
        (400, "context_length_exceeded", "context_length_exceeded"),
        (410, "session_closed", "session_closed"),
    ],
)
def test_a_failure_is_the_terminal_event_and_closes_nothing(status: int, code: str, told: str) -> None:
    renderer = ResponsesRenderer(model="m")
    end = CallFailed(message="later", code=code, http_status=status)
    raw = b"".join(renderer.chunk(event) for event in (STARTED, *TWO_CALLS[:3], end))
    with pytest.raises(ValueError, match="did not finish"):
        renderer.whole()
    response = read_stream(raw).response
    assert response is not None
    assert (response["status"], response["error"]) == ("failed", {"code": told, "message": "later"})
    assert [each["type"] for each in response["output"]] == ["reasoning"]
    assert kinds(raw)[-2:] == ["output_text.delta", "failed"]


def test_a_stream_that_waits_is_kept_alive() -> None:
    renderer = ResponsesRenderer(model="m")
    before = renderer.idle()
    raw = renderer.chunk(STARTED) + renderer.idle()
    for event in (ReasoningDelta(text="h"), TextDelta(text="x")):
        raw += renderer.chunk(event) + renderer.idle()
    raw += renderer.chunk(CallFinished(finish=Finish.STOP, usage=USAGE))
    assert before == b": waiting\n\n"
    assert kinds(before + raw).count("in_progress") == 4
    response = read_stream(before + raw).response
    assert response is not None
    assert response == json.loads(renderer.whole())


def broken(raw: bytes, change: str) -> list[dict[str, Any]]:
    events = events_of(raw)
    places = {kind: [at for at, each in enumerate(kinds(raw)) if each == kind] for kind in kinds(raw)}
    added, done = places["output_item.added"], places["output_item.done"]
    match change:
        case "an item is never done":
            del events[done[0]]
        case "an item is never added":
            del events[added[1]]
        case "an item is done twice":
            events.insert(done[0], events[done[0]])
        case "an item has a wrong number":
            events[added[1]]["output_index"] += 1
        case "an item changes when it is done":
            events[done[2]]["item"] = {**events[done[2]]["item"], "call_id": "other"}
        case "two items have one id":
            events[added[1]]["item"]["id"] = events[added[0]]["item"]["id"]
        case "a delta is of another item":
            events[places["output_text.delta"][0]]["item_id"] = "rs_abc_0"
        case "a delta is of another kind":
            events[places["output_text.delta"][0]]["type"] = "response.reasoning_text.delta"
        case "a part is never added":
            del events[places["content_part.added"][0]]
        case "a part is never done":
            del events[places["content_part.done"][0]]
        case "the text is not told to be whole":
            del events[places["output_text.done"][0]]
        case "the whole text is another one":
            events[places["output_text.done"][0]]["text"] += "x"
        case "arguments are not told to be whole":
            del events[places["function_call_arguments.done"][0]]
        case "the whole arguments are others":
            events[places["function_call_arguments.done"][0]]["arguments"] += " "
        case "arguments go on behind their end":
            events.insert(
                places["custom_tool_call_input.done"][0] + 1, events[places["custom_tool_call_input.delta"][0]]
            )
        case "the start is missing":
            del events[0]
        case "the start comes twice":
            events.insert(1, events[0])
        case "the progress is missing":
            del events[1]
        case "the output is not that of the items":
            events[-1]["response"]["output"].pop()
        case "the status is not that of the event":
            events[-1]["type"] = "response.incomplete"
        case "the usage is missing":
            events[-1]["response"]["usage"] = None
        case "something comes behind the end":
            events.append({"type": "response.in_progress"})
    return events


CHANGES = [
    "an item is never done", "an item is never added", "an item is done twice", "an item has a wrong number",
    "an item changes when it is done", "two items have one id", "a delta is of another item",
    "a delta is of another kind", "a part is never added", "a part is never done", "the text is not told to be whole",
    "the whole text is another one", "arguments are not told to be whole", "the whole arguments are others",
    "arguments go on behind their end", "the start is missing", "the start comes twice", "the progress is missing",
    "the output is not that of the items", "the status is not that of the event", "the usage is missing",
    "something comes behind the end",
]  # fmt: skip


def read_all(events: Sequence[dict[str, Any]], *, number: bool = True) -> None:
    reader = StreamReader()
    for place, event in enumerate(copy.deepcopy(events)):
        reader.take({**event, "sequence_number": place} if number else event)


@pytest.mark.parametrize("change", CHANGES)
def test_the_reader_of_these_tests_refuses_a_wrong_stream(change: str) -> None:
    raw, _ = rendered(TWO_CALLS)
    read_all(events_of(raw))
    with pytest.raises(WrongStreamError):
        read_all(broken(raw, change))


@pytest.mark.parametrize("place", [0, 5, -1])
def test_the_reader_of_these_tests_refuses_a_gap_in_the_numbers(place: int) -> None:
    events = events_of(rendered(TWO_CALLS)[0])
    events[place]["sequence_number"] += 1
    with pytest.raises(WrongStreamError, match="is number"):
        read_all(events, number=False)


def test_the_reader_of_these_tests_wants_an_end() -> None:
    raw, _ = rendered(TWO_CALLS)
    with pytest.raises(WrongStreamError, match="no end"):
        read_stream(raw[: raw.index(b"event: response.completed")])
