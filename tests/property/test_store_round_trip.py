"""Whatever is recorded reads back equal: floats to the last bit, texts to the last surrogate, JSON as spelled."""

import math
import sqlite3
from dataclasses import fields
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from openforgerl.records import (
    Completion,
    Delivered,
    EndedBy,
    Ending,
    Finish,
    Grade,
    ImageRef,
    Message,
    MessagesDelta,
    PromptDelta,
    RecordedCall,
    Role,
    Sampling,
    Session,
    Span,
    SpanKind,
    ToolCall,
    ToolSpec,
    VersionRun,
)
from openforgerl.store import encoding, facts, reading
from openforgerl.store.schema import migrate
from recorded_calls import recorded

text = st.text(st.characters(exclude_categories=()), max_size=20)
json_text = text | st.sampled_from(['{"a": 1.0,  "b":[1e3]}', '{"b":12345678901234567890}', '{"a":"\\ud83d"}', "{", ""])
number = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(-1, 2**31 - 1), max_size=8).map(tuple)
logprob = st.floats(max_value=0.0, allow_nan=False, allow_infinity=False) | st.floats(
    max_value=0.0, allow_nan=False, allow_infinity=False, width=32
)
labels = st.dictionaries(text, text, max_size=3)
tools = st.lists(st.builds(ToolSpec, name=text, definition=json_text), max_size=3).map(tuple)
tool_calls = st.lists(st.builds(ToolCall, id=text, name=text, arguments=json_text), max_size=3).map(tuple)
answers = st.builds(
    Message, role=st.just(Role.ASSISTANT), text=text, tool_calls=tool_calls, reasoning=text, name=text,
    reasoning_mark=text,
)  # fmt: skip
others = st.builds(
    Message, role=st.sampled_from([role for role in Role if role is not Role.ASSISTANT]), text=text, tool_call_id=text,
    is_error=st.booleans(),
) | st.builds(
    Message,
    role=st.sampled_from([Role.USER, Role.TOOL]),
    images=st.lists(st.builds(ImageRef, sha256=text, media_type=text, at=st.just(0)), max_size=2).map(tuple),
)  # fmt: skip
samplings = st.builds(
    Sampling,
    temperature=st.none() | number | st.integers(0, 2),
    top_p=st.none() | number,
    top_k=st.none() | st.integers(),
    repetition_penalty=st.none() | number,
    seed=st.none() | st.integers(),
    max_tokens=st.none() | st.integers(),
    stop=st.lists(text, max_size=2).map(tuple),
)
spans = st.lists(
    st.builds(Span, kind=st.sampled_from(SpanKind), start=st.integers(0), stop=st.integers(0), exact=st.booleans()),
    max_size=3,
).map(tuple)

numbers = count()
connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
migrate(connection, "memory")


@st.composite
def calls(draw: st.DrawFn, session_id: str, index: int, parent: RecordedCall | None) -> RecordedCall:
    sampled = draw(ids)
    split = draw(st.integers(0, len(sampled)))
    longest = len(parent.prompt) + len(parent.sampled_ids) if parent else 0
    most = parent.messages.cut + len(parent.messages.new) if parent else 0
    name = parent.call_id if parent else None
    return RecordedCall(
        call_id=f"Call{index}",
        session_id=session_id,
        index=index,
        dialect=draw(text),
        prompt=PromptDelta(parent=name, cut=draw(st.integers(0, longest)), new_ids=draw(ids)),
        messages=MessagesDelta(
            parent=name, cut=draw(st.integers(0, most)), new=tuple(draw(st.lists(answers | others, max_size=3)))
        ),
        tools=draw(tools),
        sampled_ids=sampled,
        logprobs=tuple(draw(st.lists(logprob, min_size=len(sampled), max_size=len(sampled)))),
        logprob_kind=draw(text),
        spans=draw(spans),
        answer=draw(answers),
        finish=draw(st.none() | st.sampled_from(Finish)),
        completion=draw(st.sampled_from(Completion)),
        delivered=Delivered(state=draw(st.sampled_from(["full", "prefix", "unknown"])), count=draw(st.integers(0, 9))),
        versions=(
            VersionRun(policy_version=draw(st.integers(0)), count=split),
            VersionRun(policy_version=draw(st.integers(0)), count=len(sampled) - split),
        ),
        sampling_asked=draw(samplings),
        sampling_used=draw(samplings),
        model_asked=draw(text),
        digest=draw(text),
        template_hash=draw(text),
        tokenizer_hash=draw(text),
        started_at=draw(number),
        ended_at=draw(number),
        stop_string=draw(st.none() | text),
        ends_turn=draw(st.booleans()),
        tool_choice=draw(text),
        output_schema=draw(text),
        schema_enforced=draw(st.booleans()),
        labels=draw(labels),
        counters=draw(st.dictionaries(text, st.integers(), max_size=2)),
        error=draw(text),
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_calls_read_back_equal(data: st.DataObject) -> None:
    session_id = f"s{next(numbers)}"
    facts.insert_session(connection, Session(session_id=session_id))
    first = data.draw(calls(session_id, 0, None))
    second = data.draw(calls(session_id, 1, first))
    for call in (first, second):
        facts.insert_call(connection, call, {})
    for got, given_ in zip(reading.select_calls(connection, session_id), (first, second), strict=True):
        assert got == given_
        assert repr(got) == repr(given_)


@settings(max_examples=50, deadline=None)
@given(labels, text, number, st.integers(0, 9), samplings, number, st.sampled_from(EndedBy), text)
def test_sessions_read_back_equal(
    marks: dict[str, str],
    harness: str,
    created: float,
    attempt: int,
    pins: Sampling,
    reward: float,
    by: EndedBy,
    why: str,
) -> None:
    session = Session(
        session_id=f"s{next(numbers)}", task_id=harness, group_id="g-1", rollout_id="r-1", attempt=attempt,
        harness=harness, sampling=pins, labels=marks, created_at=created,
    )  # fmt: skip
    facts.insert_session(connection, session)
    assert reading.select_sessions(connection, session.session_id) == (session,)
    ending, grade = Ending(ended_by=by, reason=why or "why"), Grade(kind="reward", reward=reward)
    facts.insert_ending(connection, session.session_id, ending)
    facts.insert_grade(connection, session.session_id, grade)
    (graded,) = reading.select_sessions(connection, session.session_id)
    assert (graded.ending, graded.grade) == (ending, grade)


@given(st.lists(logprob, max_size=20))
def test_logprobs_are_exact_and_short_where_they_can_be(values: list[float]) -> None:
    blob = encoding.logprobs_to_blob(values)
    back = encoding.logprobs_from_blob(blob, len(values))
    assert [math.copysign(1, value) for value in back] == [math.copysign(1, value) for value in values]
    assert list(back) == values
    single = encoding.logprobs_to_blob([-1.5] * len(values))
    assert len(single) == 4 * len(values)


def test_every_field_of_a_record_has_a_place_in_the_store() -> None:
    """One that is added to a record with a default would else be dropped silently."""
    columns = {"call_id", "session_id", "index", "prompt", "messages", "tools", "answer", "sampled_ids", "logprobs"}
    body = encoding.call_fields(encoding.call_to_json(recorded(0, (1,))))
    assert {field.name for field in fields(RecordedCall)} == columns | set(body)
    opened = encoding.from_json(encoding.session_to_json(Session(session_id="s1")))
    assert {field.name for field in fields(Session)} == {"session_id", "ending", "grade"} | set(opened)
    call = ToolCall(id="i", name="n", arguments="a")
    answer = Message(role=Role.ASSISTANT, text="t", tool_calls=(call,), reasoning="r", reasoning_mark="m", name="n")
    image = ImageRef(sha256="s", media_type="image/png", at=0)
    result = Message(role=Role.TOOL, tool_call_id="c", is_error=True, images=(image,))
    written = [encoding.from_json(encoding.message_to_json(message)) for message in (answer, result)]
    assert {field.name for field in fields(Message)} == set().union(*written)
    assert (len(fields(ToolCall)), len(fields(ImageRef))) == (3, 3)
    assert len(fields(ToolSpec)) == 2
