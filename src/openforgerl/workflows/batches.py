"""Which tasks a step works on: a function of seed and step alone, so that a resumed run draws the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from openforgerl.records import Task
from openforgerl.rollout.attempt import RolloutRequest

Item = TypeVar("Item")


def draw(
    items: Sequence[Item], count: int, *, seed: int, step: int, kind: Callable[[Item], str] | None = None
) -> tuple[Item, ...]:
    """`count` items of step `step` (from 0): whole shuffles of the items, one after another, cut into steps.

    With `kind`, a shuffle deals the kinds out in turn: a step that drew one kind only would unlearn the others.
    """
    first = step * count
    epochs = range(first // len(items), (first + count - 1) // len(items) + 1)
    order = [item for epoch in epochs for item in _shuffled(items, seed, epoch, kind)]
    start = first - epochs.start * len(items)
    return tuple(order[start : start + count])


def _shuffled(items: Sequence[Item], seed: int, epoch: int, kind: Callable[[Item], str] | None) -> list[Item]:
    order = list(items)
    random.Random(f"{seed}/{epoch}").shuffle(order)
    if kind is None:
        return order
    seen: Counter[str] = Counter()
    ranked = []
    for item in order:
        ranked.append((seen[kind(item)], item))
        seen[kind(item)] += 1
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def family(task: Task) -> str:
    """The kind of a task, as its metadata has it."""
    return task.metadata.get("family", "")


def groups(tasks: Sequence[Task], size: int, *, name: str, labels: dict[str, str]) -> tuple[RolloutRequest, ...]:
    """`size` rollouts of each task; ids from the name of the step, the place of the group and of the rollout."""
    return tuple(
        RolloutRequest(
            rollout_id=f"{name}-g{place:02d}-r{member:02d}", group_id=f"{name}-g{place:02d}", task=task, labels=labels
        )
        for place, task in enumerate(tasks)
        for member in range(size)
    )


def demonstrations(
    tasks: Sequence[Task], families: Sequence[str] | None, labels: dict[str, str]
) -> tuple[RolloutRequest, ...]:
    """One rollout of each task of these families, for the teacher."""
    wanted = [task for task in tasks if families is None or family(task) in families]
    return groups(wanted, 1, name="sft", labels=labels)
