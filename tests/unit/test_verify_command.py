"""`verify` says what holds; of nothing it says that there is nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from openforgerl.cli.report import write
from openforgerl.cli.verify import _verify
from openforgerl.errors import ConfigError, StoreError
from openforgerl.records import PromptDelta
from openforgerl.store.sqlite import FILE
from openforgerl.workflows.run_folder import RunFolder
from recorded_calls import recorded
from report_world import Recorded, make_run


async def test_a_run_without_a_session_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = await make_run(tmp_path / "run", [])
    with pytest.raises(ConfigError, match="nothing is recorded yet"):
        await _verify(run)
    assert "holds" not in capsys.readouterr().out


async def test_a_session_whose_calls_do_not_fit_together_is_one_line_in_verify_and_report(tmp_path: Path) -> None:
    calls = (recorded(0, (1, 2), (3, 4)), recorded(1, PromptDelta(parent="c0", cut=4, new_ids=(5,)), (6,)))
    run = await make_run(tmp_path / "run", [Recorded("one", calls)])
    with closing(sqlite3.connect(run.store / FILE)) as connection, connection:
        connection.execute("DROP TRIGGER calls_delete")
        connection.execute("DELETE FROM calls WHERE call_id = 'c0'")
    for command in (_verify(run), _report(run)):
        with pytest.raises(
            StoreError, match="session one is damaged, its calls do not fit together: call c1"
        ) as caught:
            await command
        assert len(str(caught.value).splitlines()) == 1


async def _report(run: RunFolder) -> None:
    write(run)
