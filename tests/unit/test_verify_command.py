"""`verify` says what holds; of nothing it says that there is nothing."""

from pathlib import Path

import pytest

from openforgerl.cli.verify import _verify
from openforgerl.errors import ConfigError
from report_world import make_run


async def test_a_run_without_a_session_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = await make_run(tmp_path / "run", [])
    with pytest.raises(ConfigError, match="nothing is recorded yet"):
        await _verify(run)
    assert "holds" not in capsys.readouterr().out
