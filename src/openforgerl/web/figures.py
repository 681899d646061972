"""What the page says, as plain values in the order in which it says it; the templates only lay it out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from openforgerl.web import glossary
from openforgerl.web.charts import Part, RewardChart, parts, reward_chart
from openforgerl.web.tally import Tally
from openforgerl.workflows.account import TokenAccount
from openforgerl.workflows.run_folder import Evaluation, Progress

Metrics = Mapping[str, float | int | str]

_WIDTHS = (860, 400)
_BEFORE_RL = ("base", "after_sft")
_STEP_COLUMNS = (
    ("policy_version", "version"), ("reward", "reward"), ("rollouts", "rollouts"), ("rollouts_trained", "trained"),
    ("groups_zero_variance", "groups without variance"), ("tokens_trained", "tokens trained"), ("loss", "loss"),
    ("entropy", "entropy"), ("kl_behaviour", "KL"), ("clip_fraction", "clipped"), ("grad_norm", "gradient norm"),
    ("gap_max", "largest gap"), ("rows_measured_again", "rows measured again"),
    ("removals_left", "sandbox folders left"), ("seconds", "seconds"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    label: str
    evaluation: Evaluation
    change: float | None
    """Against the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float | None, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A line of the token account."""

    group: str
    name: str
    meaning: str
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    name: str
    total: float
    parts: tuple[Part, ...]


def heldout(progress: Progress) -> tuple[HeldOut, ...]:
    found: list[HeldOut] = []
    for name, evaluation in progress.evaluations.items():
        change = evaluation.mean_reward - found[-1].evaluation.mean_reward if found else None
        found.append(HeldOut(label=glossary.HELDOUT.get(name, name), evaluation=evaluation, change=change))
    return tuple(found)


def reward_charts(progress: Progress, planned: int) -> tuple[RewardChart, ...]:
    """The same chart, wide and narrow."""
    marks = {name: (glossary.HELDOUT.get(name, name), e.mean_reward) for name, e in progress.evaluations.items()}
    before = [mark for name, mark in marks.items() if name in _BEFORE_RL]
    after = [mark for name, mark in marks.items() if name not in _BEFORE_RL]
    steps = [(step_number(entry), float(entry["reward"]), _step_title(entry)) for entry in rl_steps(progress)]
    return tuple(reward_chart(width, before, steps, after, planned) for width in _WIDTHS)


def rl_steps(progress: Progress) -> list[Metrics]:
    return [entry for entry in progress.metrics if str(entry.get("name", "")).startswith("grpo") and "reward" in entry]


def step_number(entry: Metrics) -> int:
    return int(str(entry["name"]).split()[1])


def _step_title(entry: Metrics) -> str:
    trained = f", {entry['rollouts_trained']} trained" if "rollouts_trained" in entry else ""
    return f"{entry['name']}: mean reward {float(entry['reward']):.3f} of {entry.get('graded', '?')} rollouts{trained}"


def tasks(progress: Progress) -> Table:
    """Held-out reward by task, one column an evaluation."""
    evaluations = progress.evaluations
    names = sorted({task for evaluation in evaluations.values() for task in evaluation.by_task})
    columns = tuple(glossary.HELDOUT.get(name, name) for name in evaluations)
    return Table(
        columns=columns,
        rows=tuple((task, tuple(each.by_task.get(task) for each in evaluations.values())) for task in names),
    )


def counts(by_phase: Mapping[str, Counter[str]], order: Sequence[str]) -> Table:
    """Phases as rows, in columns the names that occur; more than one phase gets a sum."""
    seen = {name for counter in by_phase.values() for name, count in counter.items() if count}
    columns = [*(name for name in order if name in seen), *sorted(seen - set(order))]
    lines: list[tuple[str, Counter[str]]] = list(by_phase.items())
    if len(lines) > 1:
        lines.append(("all", sum(by_phase.values(), Counter())))
    return Table(
        columns=("rollouts", *columns),
        rows=tuple((name, (counter.total(), *(counter[column] for column in columns))) for name, counter in lines),
    )


def shares(account: TokenAccount) -> tuple[Share, ...]:
    """sampled = trained + masked + unused, as shares of sampled."""
    groups = {
        "trained": ({"trained": account.trained}, {"trained": "carried a loss in an optimizer step"}),
        "masked": (account.masked, glossary.MASKED),
        "unused": (account.unused, glossary.UNUSED),
    }
    lines = [
        (group, name, meanings.get(name, ""), float(value))
        for group, (values, meanings) in groups.items()
        for name, value in sorted(values.items(), key=lambda item: -item[1])
    ]
    split = parts({f"{group}/{name}": value for group, name, _, value in lines}, float(account.sampled))
    by_key = {part.name: part for part in split}
    return tuple(
        Share(group=group, name=name, meaning=meaning, part=by_key[f"{group}/{name}"])
        for group, name, meaning, _ in lines
        if f"{group}/{name}" in by_key
    )


def times(progress: Progress) -> tuple[StepTime, ...]:
    """Where the seconds of each step went, by the keys that its metrics have."""
    found = []
    for entry in progress.metrics:
        total = float(entry.get("seconds", 0.0))
        named = {
            key.removesuffix("_s"): float(value)
            for key, value in entry.items()
            if key.endswith("_s") and isinstance(value, int | float)
        }
        rest = total - sum(named.values())
        found.append(StepTime(name=str(entry["name"]), total=total, parts=parts({**named, "other": max(0.0, rest)})))
    return tuple(found)


def time_table(steps: Sequence[StepTime]) -> Table:
    """Median seconds of a step by part, one row a kind of step."""
    kinds = list(dict.fromkeys(step.name.split()[0] for step in steps))
    names = time_parts(steps)
    rows = []
    for kind in kinds:
        alike = [step for step in steps if step.name.split()[0] == kind]
        medians = [statistics.median(_seconds(step, name) for step in alike) for name in names]
        rows.append((kind, (len(alike), statistics.median(step.total for step in alike), *medians)))
    return Table(columns=("steps", "whole step", *names), rows=tuple(rows))


def time_parts(steps: Sequence[StepTime]) -> tuple[str, ...]:
    names = dict.fromkeys(part.name for step in steps for part in step.parts)
    return (*(name for name in names if name != "other"), *(["other"] if "other" in names else []))


def _seconds(step: StepTime, name: str) -> float:
    return next((part.value for part in step.parts if part.name == name), 0.0)


def counters(tally: Tally) -> tuple[tuple[str, int, str], ...]:
    """(name, sum, meaning): those that we know in a fixed order, 0 included, then any other."""
    known = [(name, tally.counters[name], meaning) for name, meaning in glossary.COUNTERS.items()]
    others = sorted(set(tally.counters) - set(glossary.COUNTERS))
    return (*known, *((name, tally.counters[name], "") for name in others if tally.counters[name]))


def steps(progress: Progress) -> Table:
    """Every step with those of its metrics that a reader asks for first."""
    columns = [(key, label) for key, label in _STEP_COLUMNS if any(key in entry for entry in progress.metrics)]
    return Table(
        columns=tuple(label for _, label in columns),
        rows=tuple(
            (str(entry["name"]), tuple(_number(entry.get(key)) for key, _ in columns)) for entry in progress.metrics
        ),
    )


def _number(value: float | int | str | None) -> float | None:
    return value if isinstance(value, int | float) else None
