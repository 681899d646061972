"""Random answers as the core gives them to a dialect: what the laws of all dialects draw from."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from openforgerl.records import (
    CallEvent,
    CallStarted,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallEnded,
    ToolCallStarted,
    Usage,
)

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=4)
ODD_ARGUMENTS = st.one_of(st.sampled_from(("", " ", "{}", '{"a":1.0}', "[1]", "{", '{"a": "\\ud83d"}')), TEXTS)
ARGUMENTS = st.one_of(
    st.dictionaries(TEXTS, st.one_of(st.integers(), TEXTS), max_size=2).map(json.dumps), ODD_ARGUMENTS
)
USAGES = st.builds(
    lambda prompt, sampled, cached: Usage(prompt_tokens=prompt + cached, sampled_tokens=sampled, cached_tokens=cached),
    st.integers(1, 99), st.integers(0, 99), st.integers(0, 99),
)  # fmt: skip
STARTED = CallStarted(call_id="abc", model="m", created=5, prompt_tokens=3)


@st.composite
def answers(
    draw: st.DrawFn, names: st.SearchStrategy[str] = TEXTS, arguments: st.SearchStrategy[str] = ARGUMENTS
) -> list[CallEvent]:
    """Reasoning, then texts and calls in any order."""
    events: list[CallEvent] = [ReasoningDelta(text=text) for text in draw(st.lists(TEXTS, max_size=2))]
    index = 0
    for is_call in draw(st.lists(st.booleans(), max_size=5)):
        if not is_call:
            events.append(TextDelta(text=draw(TEXTS)))
            continue
        events.append(ToolCallStarted(index=index, id=f"c{index}", name=draw(names)))
        given = draw(arguments)
        cut = draw(st.integers(0, len(given)))
        events += [ToolArgumentsDelta(index=index, text=text) for text in (given[:cut], given[cut:])]
        events.append(ToolCallEnded(index=index))
        index += 1
    return events


def text_of(events: list[CallEvent], kind: type[TextDelta | ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))
