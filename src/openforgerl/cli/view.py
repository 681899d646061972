"""The live terminal view of a loop: one moving line for the batch in work, one standing line for each step."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping
from typing import TextIO

from openforgerl.records import EndedBy, Session

_WIDTH = 24


class TerminalView:
    """A workflows.listener.Listener. Without a terminal it prints the standing lines only."""

    def __init__(self, total_steps: int, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._total_steps = total_steps
        self._durations: list[float] = []
        self._name, self._expected = "", 0
        self._sessions: list[Session] = []

    def phase(self, name: str, rollouts: int) -> None:
        self._name, self._expected, self._sessions = name, rollouts, []
        if self._live:
            self._draw()
        elif rollouts:
            self._stand(f"{name}: {rollouts} rollouts")

    def attempt(self, session: Session) -> None:
        self._sessions.append(session)
        if session.ending is not None and session.ending.ended_by is EndedBy.INFRA:
            self._stand(f"  {session.session_id}: infrastructure failure, {session.ending.reason}")
        self._tell_first_grader_error(session)
        if self._live:
            self._draw()

    def _tell_first_grader_error(self, session: Session) -> None:
        """One line a batch: a broken grader breaks on every rollout. The report has all."""
        grades = [each.grade for each in self._sessions if each.grade is not None and each.grade.kind == "grader_error"]
        if len(grades) == 1 and session.grade is grades[0]:
            self._stand(f"  {session.session_id}: not graded, {grades[0].reason}")

    def step(self, name: str, metrics: Mapping[str, float | int | str]) -> None:
        shown = [f"{key} {_number(metrics[key])}" for key in ("reward", "loss", "max_gap", "seconds") if key in metrics]
        if metrics.get("graded", metrics.get("rollouts")) != metrics.get("rollouts"):
            shown.append(f"{metrics['graded']} of {metrics['rollouts']} graded")
        if name.startswith("grpo"):
            self._durations.append(float(metrics.get("seconds", 0.0)))
            bar = _bar(float(metrics.get("reward", 0.0)))
            self._stand(f"{time.strftime('%H:%M:%S')}  {name:<16} {bar}  {', '.join(shown)}{self._time_left(name)}")
        else:
            self._stand(f"{time.strftime('%H:%M:%S')}  {name:<16} {', '.join(shown)}")

    def note(self, line: str) -> None:
        """A standing line of its own."""
        self._stand(line)

    def _time_left(self, name: str) -> str:
        done = int(name.split()[1])
        recent = self._durations[-5:]
        left_s = (self._total_steps - done) * sum(recent) / len(recent)
        return f", about {left_s / 60:.0f} min left" if left_s >= 60 else ""

    def _draw(self) -> None:
        done = len(self._sessions)
        rewards = [s.grade.reward for s in self._sessions if s.grade is not None and s.grade.reward is not None]
        mean = f"reward {sum(rewards) / len(rewards):.2f}" if rewards else "reward -"
        ends = Counter(str(s.ending.ended_by) for s in self._sessions if s.ending is not None)
        told = ", ".join(f"{name} {count}" for name, count in ends.most_common())
        bar = _bar(done / self._expected if self._expected else 1.0)
        self._stream.write(f"\r\x1b[K{self._name}  {bar}  {done}/{self._expected}  {mean}  {told}")
        self._stream.flush()

    def _stand(self, line: str) -> None:
        self._stream.write(f"\r\x1b[K{line}\n" if self._live else f"{line}\n")
        self._stream.flush()


def _bar(share: float) -> str:
    full = round(max(0.0, min(1.0, share)) * _WIDTH)
    return "█" * full + "░" * (_WIDTH - full)


def _number(value: float | int | str) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
