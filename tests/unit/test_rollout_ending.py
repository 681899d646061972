"""Law 4: how an attempt's end is named from what the program did and what the proxy saw."""

import pytest

from openforgerl.records import EndedBy
from openforgerl.rollout.attempt import ending_of
from openforgerl.runtimes.base import EndCause, RunEnd


def end(cause: EndCause = EndCause.EXITED, exit_code: int | None = 0, signal: int | None = None) -> RunEnd:
    return RunEnd(cause=cause, exit_code=exit_code, signal=signal, output=b"", output_dropped=0, duration_s=1.0)


@pytest.mark.parametrize(
    ("run", "counters", "last_failure", "ended_by"),
    [
        (end(), {"calls": 2}, "", EndedBy.FINISHED),
        (end(), {}, "", EndedBy.INFRA),
        (end(EndCause.DEADLINE, None, 9), {"calls": 1}, "", EndedBy.AGENT_TIMEOUT),
        (end(EndCause.DEADLINE, None, 9), {}, "", EndedBy.INFRA),
        (end(exit_code=1), {"calls": 3}, "", EndedBy.AGENT_CRASH),
        (end(exit_code=None, signal=11), {"calls": 3}, "", EndedBy.AGENT_CRASH),
        (end(EndCause.OOM, None, 9), {"calls": 3}, "engine_errors", EndedBy.AGENT_CRASH),
        (end(EndCause.DISK, None, 9), {"calls": 3}, "", EndedBy.AGENT_CRASH),
        (end(exit_code=1), {"calls": 3, "context_full": 1}, "context_full", EndedBy.CONTEXT_FULL),
        (end(), {"calls": 3, "context_full": 1}, "", EndedBy.FINISHED),
        (end(exit_code=1), {"calls": 3, "calls_exhausted": 1}, "", EndedBy.AGENT_TIMEOUT),
        (end(exit_code=1), {"calls": 3, "engine_errors": 2}, "engine_errors", EndedBy.INFRA),
        (end(exit_code=0), {"calls": 3, "engine_errors": 2}, "engine_errors", EndedBy.INFRA),
        (end(exit_code=0), {"calls": 3, "engine_errors": 2}, "", EndedBy.FINISHED),
        (end(exit_code=1), {"calls": 3, "engine_errors": 2}, "", EndedBy.AGENT_CRASH),
        (end(EndCause.DEADLINE, None, 9), {"calls": 3, "store_errors": 1}, "store_errors", EndedBy.INFRA),
    ],
)
def test_an_end_is_named(run: RunEnd, counters: dict[str, int], last_failure: str, ended_by: EndedBy) -> None:
    assert ending_of(run, counters, last_failure).ended_by is ended_by
