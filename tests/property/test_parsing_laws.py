"""An answer is the same however its ids arrive, and nothing is shown before it is certain."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from openforgerl.records import (
    CallEvent,
    EngineFinish,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
    ToolSpec,
)
from openforgerl.tokens.decoding import decode_all
from openforgerl.tokens.parsing import AnswerParser, ParsedAnswer
from token_world import BASH, TokenWorld, answer, call_text, user

WORLD = TokenWorld()
CODEC = WORLD.codec
MARKS = ("<think>", "</think>", "\n", "\n\n", "<tool_call>", "</tool_call>", call_text(), call_text("{}"))
PIECES = (*MARKS, " ", "Hi", "é🦜", '{"', "}", "STOP", "ST", "</")
FINISHES = (EngineFinish.STOP, EngineFinish.LENGTH, None)

texts = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
garbage = st.lists(st.integers(0, CODEC.tokenizer.get_vocab_size() - 1), max_size=30).map(tuple)
odd = st.tuples(texts, st.randoms(use_true_random=False)).map(lambda drawn: WORLD.odd_ids(*drawn))
sampled = st.one_of(odd, garbage, st.tuples(odd, garbage).map(lambda parts: (*parts[0], *parts[1])))
stops = st.sampled_from([(), ("STOP",), ("\n", "<tool"), ("TOP", "ST")])
tools = st.sampled_from([(), (BASH,)])


def fed(
    ids: tuple[int, ...],
    cuts: list[int],
    tools_: tuple[ToolSpec, ...],
    stop: tuple[str, ...],
    finish: EngineFinish | None,
) -> tuple[AnswerParser, ParsedAnswer, list[CallEvent]]:
    numbers = iter(range(1000))
    parser = AnswerParser(CODEC, tools=tools_, stop=stop, mint=lambda: f"call{next(numbers)}")
    events: list[CallEvent] = []
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    for start, end in pairwise(bounds):
        events += parser.feed(ids[start:end])
        assert_shown(parser, ids[:end], events, tools_)
    parsed = parser.finish(finish)
    return parser, parsed, events + parsed.events


def assert_shown(
    parser: AnswerParser, ids: tuple[int, ...], events: list[CallEvent], tools_: tuple[ToolSpec, ...]
) -> None:
    """What the shown ids say alone was all emitted, and no half character with it."""
    assert 0 <= parser.shown() <= len(ids)
    alone = AnswerParser(CODEC, tools=tools_, stop=(), mint=lambda: "call")
    alone.feed(ids[: parser.shown()])
    said = alone.finish(None).answer
    assert joined(events, ReasoningDelta).startswith(said.reasoning)
    assert joined(events, TextDelta).startswith(said.text)
    text = CODEC.decode(ids)
    incomplete = text.endswith("\ufffd") and text.count("\ufffd") == 1 and len(ids) < 4
    assert not (incomplete and joined(events, TextDelta).endswith("\ufffd"))


def joined(events: list[CallEvent], kind: type[ReasoningDelta] | type[TextDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


@settings(max_examples=300, deadline=None)
@given(sampled, st.lists(st.integers(0, 60), max_size=8), tools, stops, st.sampled_from(FINISHES))
def test_chunks_do_not_matter(ids, cuts, tools_, stop, finish) -> None:
    first = fed(ids, [], tools_, stop, finish)
    second = fed(ids, cuts, tools_, stop, finish)
    each = fed(ids, list(range(len(ids))), tools_, stop, finish)
    for parser, parsed, events in (second, each):
        assert (parsed.answer, parsed.spans, parsed.finish, parsed.ends_turn, parsed.counters) == (
            first[1].answer,
            first[1].spans,
            first[1].finish,
            first[1].ends_turn,
            first[1].counters,
        )
        assert (parser.stop_string, parser.shown()) == (first[0].stop_string, first[0].shown())
        assert_events_are_the_answer(parsed, events)


def assert_events_are_the_answer(parsed: ParsedAnswer, events: list[CallEvent]) -> None:
    message = parsed.answer
    assert joined(events, TextDelta) == message.text
    assert joined(events, ReasoningDelta) == message.reasoning
    started = [event for event in events if isinstance(event, ToolCallStarted)]
    assert [(event.index, event.id, event.name) for event in started] == [
        (index, call.id, call.name) for index, call in enumerate(message.tool_calls)
    ]
    arguments = [event.text for event in events if isinstance(event, ToolArgumentsDelta)]
    assert arguments == [call.arguments for call in message.tool_calls]


@settings(max_examples=300, deadline=None)
@given(sampled, tools)
def test_without_a_stop_string_every_visible_character_is_in_the_answer_or_is_markup(ids, tools_) -> None:
    _, parsed, _ = fed(ids, [], tools_, (), EngineFinish.LENGTH)
    message = parsed.answer
    visible = ids[:-1] if parsed.ends_turn else ids
    shown = message.text + message.reasoning + "".join(call.arguments for call in message.tool_calls)
    hidden = CODEC.decode(visible)
    for part in (message.reasoning, *(call.arguments for call in message.tool_calls)):
        assert part in hidden
    markup = len(hidden) - len(shown)
    assert markup >= 0
    if not tools_ and not any(span.kind == "reasoning" for span in parsed.spans):
        assert message.text == hidden


@settings(max_examples=300, deadline=None)
@given(garbage)
def test_decoding_id_by_id_gives_the_text_of_all_ids(ids) -> None:
    text, decoder = decode_all(CODEC, ids)
    assert text == CODEC.decode(ids)
    assert decoder.boundary_chars[-1] == len(text)
    for count, chars in zip(decoder.boundary_ids, decoder.boundary_chars, strict=True):
        assert CODEC.decode(ids[:count]) == text[:chars]


@settings(max_examples=200, deadline=None)
@given(sampled, st.sampled_from([(), (WORLD.end,), (0,)]), tools)
@example((31, 384, 33, 224), (), ())  # "<think> ": white space is no reasoning that a message could drop
def test_a_delivered_answer_comes_back_as_exactly_its_sampled_ids(ids, end, tools_) -> None:
    whole = (*ids, *end) or (WORLD.end,)
    world = TokenWorld()
    said = world.ask([user("Begin")], whole, tools=tools_)
    prompt = world.prompt([user("Begin"), said, user("Go on")], tools=tools_)
    closing = world.ids("\n" if whole[-1] == world.end else "<|im_end|>\n")
    assert prompt.ids[: len(world.prompts[0])] == world.prompts[0]
    assert prompt.ids[len(world.prompts[0]) :][: len(whole) + len(closing)] == whole + closing
    assert prompt.counters == {}
    again = world.prompt([user("Begin"), answer(" " + said.text + "\n", *said.tool_calls), user("Go on")], tools=tools_)
    assert said.reasoning or again.ids == prompt.ids
