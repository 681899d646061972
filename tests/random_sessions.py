"""Random sessions as trees of calls over a tiny alphabet, where prefixes meet by chance, with the truth beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from openforgerl.records import (
    CallKind,
    Completion,
    MaskReason,
    MessagesDelta,
    PromptDelta,
    RecordedCall,
    Sampling,
    VersionRun,
)
from recorded_calls import BASH, assistant, recorded, user

_ABORTED = {
    Completion.CLIENT_ABORTED: MaskReason.CLIENT_ABORTED,
    Completion.ENGINE_ABORTED: MaskReason.ENGINE_ABORTED,
    Completion.ERROR: MaskReason.CALL_ERROR,
    Completion.LATE: MaskReason.LATE,
}


@dataclass(frozen=True)
class Truth:
    """What is true of a call however it is recorded."""

    prompt: tuple[int, ...]
    whole: tuple[int, ...]
    reason: MaskReason | None
    """Of its own, whatever its row."""


@dataclass(frozen=True)
class RandomSession:
    calls: tuple[RecordedCall, ...]
    truth: dict[str, Truth]


def random_session(random: Random, *, most_calls: int = 9, offset: int = 0) -> RandomSession:
    """`offset` moves the alphabet: sessions of different offsets share no id, so no prefix."""
    calls: list[RecordedCall] = []
    truth: dict[str, Truth] = {}
    for index in range(random.randrange(most_calls + 1)):
        prompt = _prompt(random, calls, truth, offset)
        sampled = tuple(random.choices(range(offset, offset + 2), k=random.choice((0, 1, 1, 2, 2, 3))))
        call = _call(random, index, _delta(random, calls, truth, prompt), sampled)
        calls.append(call)
        truth[call.call_id] = Truth(prompt, prompt + sampled, reason_of(call))
    return RandomSession(tuple(calls), truth)


def reason_of(call: RecordedCall) -> MaskReason | None:
    used = call.sampling_used
    changed = used.top_p is not None or used.temperature == 0.0 or call.tool_choice not in ("auto", "none")
    return MaskReason.CHANGED_DISTRIBUTION if changed else _ABORTED.get(call.completion)


def expected_parent(calls: Sequence[RecordedCall], truth: dict[str, Truth], place: int) -> str | None:
    """By the definition: the longest whole earlier call that is a prefix, the earliest of equals."""
    best: RecordedCall | None = None
    for call in calls[:place]:
        whole = truth[call.call_id].whole
        fits = call.sampled_ids and truth[calls[place].call_id].prompt[: len(whole)] == whole
        if fits and (best is None or len(whole) > len(truth[best.call_id].whole)):
            best = call
    return best.call_id if best else None


def with_other_deltas(random: Random, session: RandomSession) -> tuple[RecordedCall, ...]:
    """The same prompts, leaning on other calls."""
    calls: list[RecordedCall] = []
    for call in session.calls:
        fields = {name: getattr(call, name) for name in call.__slots__}
        fields["prompt"] = _delta(random, calls, session.truth, session.truth[call.call_id].prompt)
        calls.append(RecordedCall(**fields))
    return tuple(calls)


def side_and_main(random: Random) -> tuple[tuple[RecordedCall, ...], dict[str, CallKind]]:
    """A title call at a random place beside one or two tool turns."""
    first = MessagesDelta(parent=None, cut=0, new=(user("do"),))
    second = MessagesDelta(parent=None, cut=0, new=(user("do"), assistant("done"), user("more")))
    title = MessagesDelta(parent=None, cut=0, new=(user("title of: do"),))
    main = {"tools": (BASH,), "answer": assistant("done")}
    place = random.randrange(3)
    calls = [
        recorded(0 if place else 1, (1, 2), (3,), messages=first, **main),
        recorded(2 if place < 2 else 1, (1, 2, 3, 4), (5,), messages=second, **main),
    ]
    calls = calls[: random.randrange(1, 3)]
    side = recorded(place, (9, 9), (6, 6), messages=title, answer=assistant("a title"))
    kinds = {call.call_id: CallKind.MAIN for call in calls}
    return (*calls, side), {**kinds, side.call_id: CallKind.SIDE}


def _prompt(random: Random, calls: Sequence[RecordedCall], truth: dict[str, Truth], offset: int) -> tuple[int, ...]:
    new = tuple(random.choices(range(offset, offset + 2), k=random.randrange(3)))
    if not calls or random.random() < 0.15:
        return new
    before = truth[random.choice(calls).call_id]
    shape = random.choice(("grow", "grow", "grow", "again", "cut"))
    if shape == "again":
        return before.prompt
    return (before.whole if shape == "grow" else before.whole[: random.randrange(len(before.whole) + 1)]) + new


def _delta(
    random: Random, calls: Sequence[RecordedCall], truth: dict[str, Truth], prompt: tuple[int, ...]
) -> PromptDelta:
    if not calls or random.random() < 0.2:
        return PromptDelta(parent=None, cut=0, new_ids=prompt)
    parent = random.choice(calls).call_id
    whole = truth[parent].whole
    shared = next((at for at, (a, b) in enumerate(zip(whole, prompt, strict=False)) if a != b), None)
    cut = random.randint(0, min(len(whole), len(prompt)) if shared is None else shared)
    return PromptDelta(parent=parent, cut=cut, new_ids=prompt[cut:])


def _call(random: Random, index: int, prompt: PromptDelta, sampled: tuple[int, ...]) -> RecordedCall:
    split = random.randint(0, len(sampled))
    runs = ((random.randrange(3), split), (7, len(sampled) - split))
    return recorded(
        index,
        prompt,
        sampled,
        logprobs=tuple(-random.random() for _ in sampled),
        versions=tuple(VersionRun(policy_version=version, count=count) for version, count in runs if count),
        completion=random.choice((*[Completion.COMPLETE] * 6, *Completion)),
        sampling_used=Sampling(
            temperature=random.choice((None, 1.0, 1.0, 0.7, 0.0)), top_p=random.choice((None, None, None, 0.9))
        ),
        tool_choice=random.choice(("auto", "auto", "none", "required", "bash")),
    )
