"""Geometry of the page's charts: numbers in, coordinates out; the templates draw them. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEIGHT = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 14, 26, 44
_SLOT, _SLOT_LEAST, _SLOT_MOST = 0.1, 56.0, 84.0
"""Share of the width that one held-out mark takes, and its limits in pixels."""
_MEAN_OVER = 5
_BINS_PER_DECADE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    x: float
    y: float
    label: str
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    at: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardChart:
    """Held-out marks before, a curve of training rewards, held-out marks behind."""

    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    split: tuple[float, float]
    """Where the part of the steps begins and ends."""
    y_ticks: tuple[Tick, ...]
    x_ticks: tuple[Tick, ...]
    dots: tuple[Mark, ...]
    line: str
    """Path through the dots, or through their running mean."""
    smooth: bool
    heldout: tuple[Mark, ...]
    heldout_line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    count: int
    share: float
    """Of the fullest bin."""
    label: str
    title: str
    broken: bool
    gate: bool
    """The gate is this bin's lower edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    value: float
    share: float
    start: float
    """Share of what stands before it."""


Labelled = Sequence[tuple[str, float]]
Steps = Sequence[tuple[int, float, str]]


class _Frame:
    """Where a reward and a place on the axis lie on the picture."""

    def __init__(self, width: int, before: int, after: int, last_step: int, values: Sequence[float]) -> None:
        self.left, self.right, self.top, self.bottom = _LEFT, width - _RIGHT, _TOP, HEIGHT - _BOTTOM
        self.ticks = nice_ticks(min([0.0, *values]), max([1.0, *values]))
        self.last_step = last_step
        self._slot = max(_SLOT_LEAST, min(_SLOT_MOST, width * _SLOT))
        self.split = (self.left + self._slot * before, self.right - self._slot * after)

    def y(self, value: float) -> float:
        share = (value - self.ticks[0]) / (self.ticks[-1] - self.ticks[0])
        return round(self.bottom - share * (self.bottom - self.top), 1)

    def step_x(self, number: float) -> float:
        return round(self.split[0] + (number - 0.5) / self.last_step * (self.split[1] - self.split[0]), 1)

    def mark(self, place: int, from_x: float, label: str, value: float) -> Mark:
        x = round(from_x + self._slot * (place + 0.5), 1)
        return Mark(x=x, y=self.y(value), label=label, title=f"{value:.2f}")


def reward_chart(width: int, before: Labelled, steps: Steps, after: Labelled, planned: int) -> RewardChart:
    """`before`, `after`: (label, held-out reward); `steps`: (number, reward, title); the axis holds `planned` steps."""
    rewards = [reward for _, reward, _ in steps]
    last_step = max([planned, 1, *(number for number, _, _ in steps)])
    values = [*rewards, *(value for _, value in (*before, *after))]
    frame = _Frame(width, len(before), len(after), last_step, values)
    smooth = len(steps) >= 2 * _MEAN_OVER
    curve = running_means(rewards, _MEAN_OVER) if smooth else rewards
    dots = tuple(Mark(x=frame.step_x(n), y=frame.y(reward), label="", title=title) for n, reward, title in steps)
    heldout = tuple(
        frame.mark(place, from_x, label, value)
        for from_x, marks in ((frame.left, before), (frame.split[1], after))
        for place, (label, value) in enumerate(marks)
    )
    numbers = step_ticks(last_step, frame.split[1] - frame.split[0])
    return RewardChart(
        width=width,
        height=HEIGHT,
        left=frame.left,
        right=frame.right,
        top=frame.top,
        bottom=frame.bottom,
        split=frame.split,
        y_ticks=tuple(Tick(at=frame.y(value), label=f"{value:g}") for value in frame.ticks),
        x_ticks=tuple(Tick(at=frame.step_x(number), label=str(number)) for number in numbers),
        dots=dots,
        line=path([(dot.x, frame.y(value)) for dot, value in zip(dots, curve, strict=True)]),
        smooth=smooth,
        heldout=heldout,
        heldout_line=path([(mark.x, mark.y) for mark in heldout]),
    )


def path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path of straight lines; "" for fewer than two points."""
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if len(points) > 1 else ""


def running_means(values: Sequence[float], over: int) -> list[float]:
    """Each value and up to `over` - 1 before it."""
    windows = [values[max(0, at + 1 - over) : at + 1] for at in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def nice_ticks(low: float, high: float) -> list[float]:
    """Four to seven round numbers that hold both."""
    raw = (high - low) / 4 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 10) for number in range(first, last + 1)]


def step_ticks(last: int, width: float) -> list[int]:
    """Step numbers that fit beside each other: every one, or every second, fifth, tenth, ..."""
    room = max(1, int(width / 30))
    step = next(step for scale in (1, 10, 100, 1000, 10**6) for step in (scale, 2 * scale, 5 * scale)
                if last / step <= room)  # fmt: skip
    return [1, *range(step if step > 1 else 2, last + 1, step)] if last > 1 else [1]


def histogram(gaps: Sequence[float], gate: float) -> tuple[Bin, ...]:
    """Of values on a logarithmic axis, up to the gate at least; exact zeros have a bin of their own."""
    at = Counter(math.floor(math.log10(gap) * _BINS_PER_DECADE + 1e-9) for gap in gaps if gap > 0)
    zeros = sum(gap <= 0 for gap in gaps)
    edge = round(math.log10(gate) * _BINS_PER_DECADE)
    places = range(min([*at, edge - _BINS_PER_DECADE]), max([*at, edge]) + 1)
    most = max([*at.values(), zeros, 1])
    bins = [_bin(place, at[place], most, edge) for place in places]
    zero = Bin(count=zeros, share=zeros / most, label="0", title=f"{zeros} rows: exactly 0", broken=False, gate=False)
    return (zero, *bins) if zeros else tuple(bins)


def _bin(place: int, count: int, most: int, edge: int) -> Bin:
    low, high = (10.0 ** (number / _BINS_PER_DECADE) for number in (place, place + 1))
    label = f"1e{place // _BINS_PER_DECADE}" if place % _BINS_PER_DECADE == 0 else ""
    title = f"{count} rows: {low:.1e} to {high:.1e}"
    return Bin(count=count, share=count / most, label=label, title=title, broken=place >= edge, gate=place == edge)


def parts(values: Mapping[str, float], whole: float | None = None) -> tuple[Part, ...]:
    """Shares of `whole` (of their sum by default), in order, without those that are 0."""
    total = whole or sum(values.values()) or 1.0
    found, start = [], 0.0
    for name, value in values.items():
        if value > 0:
            found.append(Part(name=name, value=value, share=value / total, start=start))
            start += value / total
    return tuple(found)
