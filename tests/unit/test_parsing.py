"""What a sampled answer becomes: reasoning, text, calls, spans, finish."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from openforgerl.records import (
    CallEvent,
    EngineFinish,
    Finish,
    ReasoningDelta,
    SpanKind,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    ToolSpec,
)
from openforgerl.tokens.parsing import AnswerParser, ParsedAnswer
from token_world import BASH, TokenWorld, call_text

WORLD = TokenWorld()
END = (WORLD.end,)
LS = '{"command": "ls"}'


def parser(tools: tuple[ToolSpec, ...] = (BASH,), stop: Sequence[str] = (), tool_choice: str = "auto") -> AnswerParser:
    return AnswerParser(WORLD.codec, tools=tools, stop=stop, mint=WORLD.mint, tool_choice=tool_choice)


def parsed(
    text: str,
    finish: EngineFinish | None = EngineFinish.STOP,
    *,
    tools: tuple[ToolSpec, ...] = (BASH,),
    stop: Sequence[str] = (),
    tool_choice: str = "auto",
) -> ParsedAnswer:
    one = parser(tools, stop, tool_choice)
    one.feed((*WORLD.odd_ids(text), *END))
    return one.finish(finish)


def seen(answer: ParsedAnswer) -> tuple[str, str, list[tuple[str, str]]]:
    message = answer.answer
    return message.reasoning, message.text, [(call.name, call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize(
    ("text", "reasoning", "shown", "calls"),
    [
        ("Hello.", "", "Hello.", []),
        ("", "", "", []),
        ("  Hello. \n", "", "  Hello. \n", []),
        (call_text(LS), "", "", [("bash", LS)]),
        ("I look.\n" + call_text(LS), "", "I look.", [("bash", LS)]),
        ("I look.\n\n" + call_text(LS), "", "I look.\n", [("bash", LS)]),
        ("I look." + call_text(LS), "", "I look.", [("bash", LS)]),
        (call_text(LS) + "\n" + call_text("{}"), "", "", [("bash", LS), ("bash", "{}")]),
        (call_text(LS) + " \n\n" + call_text("{}") + "\n", "", "", [("bash", LS), ("bash", "{}")]),
        (f"A\n{call_text(LS)}\nB\n{call_text('{}')}\nC", "", "A\nB\nC", [("bash", LS), ("bash", "{}")]),
        ("<think>\nHm.\n</think>\n\nHello.", "Hm.", "Hello.", []),
        ("\n<think>Hm.</think>Hello.", "Hm.", "Hello.", []),
        ("<think>\nHm.\n\n</think>\n\n\nHello.", "Hm.\n", "\nHello.", []),
        ("<think>\n\n</think>\n\nHello.", "", "Hello.", []),
        ("<think>\nHm.\n</think>\n\n" + call_text(LS), "Hm.", "", [("bash", LS)]),
        ("<think>\nHm. " + call_text(LS), "Hm. " + call_text(LS), "", []),
        ("Hello <think>Hm.</think>", "", "Hello <think>Hm.</think>", []),
        (call_text('{"a": "</tool_call>", "b": "}\\"{"}'), "", "", [("bash", '{"a": "</tool_call>", "b": "}\\"{"}')]),
        (call_text('{"a":1.0,  "a" : 1e3}', "no-such-tool"), "", "", [("no-such-tool", '{"a":1.0,  "a" : 1e3}')]),
        (f'<tool_call>\n{{"arguments": {LS} , "name": "bash"}}\n</tool_call>', "", "", [("bash", LS)]),
    ],
)
def test_an_answer_is_read_as_the_template_would_print_it(
    text: str, reasoning: str, shown: str, calls: list[tuple[str, str]]
) -> None:
    assert seen(parsed(text)) == (reasoning, shown, calls)


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "bash", "arguments": {"command": "ls',
        '<tool_call>{"name": "bash", "arguments": "ls"}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"a": 01}}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {"a": "\n"}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": 7, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "bash"}</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {}},</tool_call>',
        '<tool_call>{"name": "bash", "arguments": {}}',
        "<tool_call>[]</tool_call>",
        "<tool_call>",
        "Say\n<tool_call> or\n</tool_call>.",
        "<tool_call>{" + '"a":{' * 3000 + "}" * 3001 + "</tool_call>",
    ],
)
def test_what_does_not_parse_is_the_text_that_it_is(text: str) -> None:
    answer = parsed(text)
    assert seen(answer) == ("", text, [])
    assert answer.finish is Finish.STOP
    assert answer.counters["unparsed_calls"] >= 1


def test_a_call_behind_a_broken_one_is_found() -> None:
    broken = '<tool_call>{"name": "x</tool_call>\n'
    assert seen(parsed(broken + call_text(LS))) == ("", broken.removesuffix("\n"), [("bash", LS)])
    assert seen(parsed("<tool_call>" + call_text(LS))) == ("", "<tool_call>", [("bash", LS)])


@pytest.mark.parametrize(("tools", "choice"), [((), "auto"), ((BASH,), "none")])
def test_markup_is_text_where_no_tool_may_be_called(tools: tuple[ToolSpec, ...], choice: str) -> None:
    text = "I look.\n" + call_text(LS)
    assert seen(parsed(text, tools=tools, tool_choice=choice)) == ("", text, [])


@pytest.mark.parametrize(
    ("text", "finish", "expected"),
    [
        ("Hello", EngineFinish.STOP, Finish.STOP),
        (call_text(), EngineFinish.STOP, Finish.TOOL_CALLS),
        (call_text(), EngineFinish.LENGTH, Finish.LENGTH),
        (call_text(), EngineFinish.ABORT, None),
        ("Hello", None, None),
        ("Hello STOP", None, Finish.STOP_STRING),
        (call_text() + "STOP", EngineFinish.LENGTH, Finish.STOP_STRING),
    ],
)
def test_the_finish_says_why_the_answer_ended(text: str, finish: EngineFinish | None, expected: Finish | None) -> None:
    assert parsed(text, finish, stop=("STOP",)).finish is expected


def test_only_the_last_id_ends_the_turn() -> None:
    one = parser()
    assert one.feed((*WORLD.codec.encode("a"), *END)) == [TextDelta(text="a")]
    assert one.feed((0, *WORLD.codec.encode("b"))) == [TextDelta(text="<|im_end|><|endoftext|>b")]
    answer = one.finish(EngineFinish.LENGTH)
    assert (answer.answer.text, answer.ends_turn) == ("a<|im_end|><|endoftext|>b", False)
    assert answer.counters == {"shown_specials": 2}
    other = parser()
    other.feed((*WORLD.codec.encode("a"), 0))
    assert other.finish(EngineFinish.STOP).ends_turn


def test_no_delta_holds_half_a_character_or_the_beginning_of_markup_or_of_a_stop_string() -> None:
    one = parser(stop=("ENDE",))
    bird = WORLD.codec.encode("🦜")
    assert len(bird) > 1
    assert [one.feed((token,)) for token in bird][:-1] == [[]] * (len(bird) - 1)
    assert texts(one, "Hi\n<tool") == "Hi"
    assert texts(one, "s EN") == "\n<tools "
    assert texts(one, "D") == ""
    assert texts(one, "s</tool_call") == "ENDs</tool_call"


def test_half_a_character_at_the_end_is_shown_as_the_decoder_shows_it() -> None:
    one = parser()
    one.feed(WORLD.codec.encode("a🦜")[:-1])
    answer = one.finish(EngineFinish.LENGTH)
    assert answer.answer.text == "a\ufffd"
    assert answer.spans[-1].stop == len(WORLD.codec.encode("a🦜")) - 1


def test_a_call_becomes_events_when_it_is_complete() -> None:
    one = parser()
    assert texts(one, "I look.\n" + call_text(LS)[:-1]) == "I look."
    minted = "call" + str(int(WORLD.mint()[4:]) + 1).zfill(20)
    assert one.feed(WORLD.odd_ids(">")) == [
        ToolCallStarted(index=0, id=minted, name="bash"),
        ToolArgumentsDelta(index=0, text=LS),
        ToolCallEnded(index=0),
    ]
    assert one.feed(WORLD.odd_ids("\n" + call_text("{}")))[0] == ToolCallStarted(
        index=1, id=one.finish(None).answer.tool_calls[1].id, name="bash"
    )


def test_reasoning_streams_as_reasoning() -> None:
    one = parser()
    events = one.feed(WORLD.odd_ids("<think>\nHm.\n</thin"))
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == "Hm."
    assert one.feed(WORLD.odd_ids("k>\n\nHi")) == [TextDelta(text="Hi")]


def test_spans_are_the_ids_of_the_parts_with_their_markup() -> None:
    parts = ["<think>\nHm.\n</think>\n\n", "I look.", "\n" + call_text(LS), "\n" + call_text("{}")]
    answer = parsed("".join(parts))
    kinds = [SpanKind.REASONING, SpanKind.TEXT, SpanKind.TOOL_CALL, SpanKind.TOOL_CALL]
    start = 0
    for span, kind, part in zip(answer.spans, kinds, parts, strict=True):
        assert (span.kind, span.start, span.stop, span.exact) == (kind, start, start + len(WORLD.odd_ids(part)), True)
        start = span.stop


def test_a_span_that_ends_inside_a_token_says_so() -> None:
    double = WORLD.codec.encode("\n\n")
    assert len(double) == 1
    one = parser()
    one.feed((*WORLD.odd_ids("<think>\nHm.\n</think>\n"), *double, *WORLD.odd_ids("x")))
    reasoning, text = one.finish(None).spans
    assert (reasoning.exact, text.exact) == (False, False)
    assert text.start == reasoning.stop - 1


def test_a_stop_string_cuts_the_text_and_not_the_ids() -> None:
    one = parser(stop=("\n\n", "and", "an"))
    one.feed(WORLD.odd_ids("this and that"))
    assert one.stop_string == "an"
    answer = one.finish(None)
    assert answer.answer.text == "this "
    assert one.shown() == answer.spans[0].stop == len(WORLD.odd_ids("this "))


def test_a_stop_string_across_tokens_is_held_back_until_it_is_certain() -> None:
    one = parser(stop=("</done>",))
    assert texts(one, "ok </do") == "ok "
    assert one.stop_string is None
    assert texts(one, "ne>") == ""
    assert one.stop_string == "</done>"
    assert one.finish(None).answer.text == "ok "


def test_shown_counts_the_ids_whose_text_went_out() -> None:
    one = parser()
    one.feed(WORLD.odd_ids("Hi\n<tool"))
    assert one.shown() == 2
    one.feed(WORLD.odd_ids("s"))
    assert one.shown() == 9
    one.feed(WORLD.odd_ids(call_text(LS)))
    assert one.shown() == 9 + len(WORLD.odd_ids(call_text(LS)))
    one.feed(END)
    one.finish(EngineFinish.STOP)
    assert one.shown() == 10 + len(WORLD.odd_ids(call_text(LS)))


def test_an_answer_of_openings_only_is_read_in_reasonable_time() -> None:
    text = '<tool_call>{"name": "' * 3000
    one = parser()
    one.feed(WORLD.codec.encode(text))
    assert one.finish(EngineFinish.LENGTH).answer.text == text


def texts(one: AnswerParser, text: str) -> str:
    events: list[CallEvent] = one.feed(WORLD.odd_ids(text))
    assert all(isinstance(event, TextDelta) for event in events)
    return "".join(event.text for event in events if isinstance(event, TextDelta))
