"""Where the seconds of a step go, by part: what `bench/loop.py` and the report show."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from openforgerl.engines.local import LocalEngine

_TOKENS = ("prefilled_tokens", "reused_tokens", "sampled_tokens")


class StepClock:
    """Parts on the monotonic clock, and what the engine did meanwhile."""

    def __init__(self, engine: LocalEngine) -> None:
        self._engine = engine
        self._counters = engine.counters
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time inside to `<name>_s`."""
        began = time.monotonic()
        try:
            yield
        finally:
            key = f"{name}_s"
            self._parts[key] = self._parts.get(key, 0.0) + time.monotonic() - began

    def read(self) -> Mapping[str, float]:
        """Parts in wall seconds; engine_s: the engine computed."""
        now = self._engine.counters
        engine_s = (now.get("step_us", 0) - self._counters.get("step_us", 0)) / 1e6
        tokens = {name: float(now.get(name, 0) - self._counters.get(name, 0)) for name in _TOKENS}
        return {**self._parts, "engine_s": engine_s, **tokens}
