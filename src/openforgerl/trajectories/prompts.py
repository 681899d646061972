"""Whole prompts and message lists from the deltas of a session's calls, and the trie that the ids form: pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from openforgerl.records import Message, RecordedCall, content_keys

T = TypeVar("T")

ID_BYTES = 4


def in_order(calls: Sequence[RecordedCall]) -> list[RecordedCall]:
    """The calls of one session in the order of sampling. Raises ValueError where they are not that."""
    ordered = sorted(calls, key=lambda call: call.index)
    for before, after in pairwise(ordered):
        if before.session_id != after.session_id:
            raise ValueError(f"calls of two sessions: {before.session_id} and {after.session_id}")
        if before.index == after.index:
            raise ValueError(f"session {after.session_id}: two calls have index {after.index}")
    if len({call.call_id for call in ordered}) != len(ordered):
        raise ValueError(f"session {ordered[0].session_id}: two calls have one id")
    return ordered


def prompt_ids(calls: Sequence[RecordedCall]) -> dict[str, tuple[int, ...]]:
    """Call id -> its whole prompt. Raises ValueError for a delta that leans on no earlier call, or on too few ids."""
    return {call_id: to_ids(prompt) for call_id, prompt in prompt_bytes(in_order(calls)).items()}


def prompt_bytes(ordered: Sequence[RecordedCall]) -> dict[str, bytes]:
    """Call id -> its whole prompt as int32 in the machine's order, which compares at the speed of memory."""
    prompts: dict[str, bytes] = {}
    wholes: dict[str, bytes] = {}
    for call in ordered:
        delta = call.prompt
        before = b"" if delta.parent is None else _known(wholes, delta.parent, call, "prompt")
        kept = before[: delta.cut * ID_BYTES]
        if len(kept) != delta.cut * ID_BYTES:
            raise ValueError(f"call {call.call_id}: cut {delta.cut}, but its parent has {len(before) // ID_BYTES} ids")
        prompts[call.call_id] = kept + to_bytes(delta.new_ids)
        wholes[call.call_id] = prompts[call.call_id] + to_bytes(call.sampled_ids)
    return prompts


def message_lists(calls: Sequence[RecordedCall]) -> dict[str, tuple[Message, ...]]:
    """Call id -> the messages that the harness sent. Raises ValueError as `prompt_ids` does."""
    lists: dict[str, tuple[Message, ...]] = {}
    for call in in_order(calls):
        delta = call.messages
        before = () if delta.parent is None else _known(lists, delta.parent, call, "messages")
        if not 0 <= delta.cut <= len(before):
            raise ValueError(f"call {call.call_id}: cut {delta.cut}, but its parent has {len(before)} messages")
        lists[call.call_id] = before[: delta.cut] + delta.new
    return lists


def parents(calls: Sequence[RecordedCall]) -> dict[str, str | None]:
    """Call id -> its parent in the trie: the earlier call whose prompt + sampled ids are the longest prefix of its
    prompt, of equal ones the earliest; None for a root.

    A call that sampled nothing is no node of the trie: it has a parent and is nobody's.
    """
    ordered = in_order(calls)
    return parents_of(ordered, content_prompts(ordered, prompt_bytes(ordered)))


def content_prompts(ordered: Sequence[RecordedCall], prompts: Mapping[str, bytes]) -> Mapping[str, bytes]:
    """The prompts as they tell images apart: equal ones have equal ids and equal images."""
    shown = {call.call_id: call.images for call in ordered if call.images}
    if not shown:
        return prompts
    keyed = {name: to_bytes(content_keys(to_ids(prompts[name]), images)) for name, images in shown.items()}
    return {**prompts, **keyed}


def parents_of(ordered: Sequence[RecordedCall], prompts: Mapping[str, bytes]) -> dict[str, str | None]:
    """As `parents`, where the whole prompts are known, as `content_prompts` gives them."""
    earlier = _Nodes()
    found: dict[str, str | None] = {}
    for call in ordered:
        prompt = prompts[call.call_id]
        found[call.call_id] = earlier.longest_prefix_of(prompt)
        if call.sampled_ids:
            earlier.add(prompt + to_bytes(call.sampled_ids), call)
    return found


class _Nodes:
    """Ends of earlier calls, from the longest to the shortest, of equal length by index.

    A conversation that only grows is one comparison a call; a rebuilt one costs one for each earlier call, and each
    ends at the first id that differs.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[int, int]] = []
        self._ends: dict[tuple[int, int], tuple[bytes, str]] = {}

    def add(self, whole: bytes, call: RecordedCall) -> None:
        key = (-len(whole), call.index)
        insort(self._keys, key)
        self._ends[key] = (whole, call.call_id)

    def longest_prefix_of(self, prompt: bytes) -> str | None:
        for key in self._keys[bisect_right(self._keys, (-len(prompt), -1)) :]:
            whole, call_id = self._ends[key]
            if prompt.startswith(whole):
                return call_id
        return None


def to_bytes(ids: Sequence[int]) -> bytes:
    return np.array(ids, dtype=np.int32).tobytes()


def to_ids(raw: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(raw, dtype=np.int32).tolist())


def _known(found: dict[str, T], parent: str, call: RecordedCall, what: str) -> T:
    if parent not in found:
        raise ValueError(f"call {call.call_id}: the parent of its {what}, call {parent}, is no earlier call")
    return found[parent]
