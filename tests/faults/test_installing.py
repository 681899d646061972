"""Installing survives two installers at once, a kill -9 in the middle, and a failing installer."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openforgerl.errors import HarnessError
from openforgerl.harnesses.installing import PINS, cache_folder, ensure, npm_install, pip_install, run

SRC = Path(__file__).parents[2] / "src"


def test_two_installers_at_once_build_once(tmp_path: Path) -> None:
    target, built, all_started = tmp_path / "thing-1", [], threading.Event()

    def build(folder: Path) -> None:
        built.append(folder)
        assert all_started.wait(timeout=30)
        (folder / "file").write_text("whole")

    threads = [threading.Thread(target=ensure, args=(target, build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    all_started.set()
    for thread in threads:
        thread.join(timeout=30)
    assert len(built) == 1
    assert (target / "file").read_text() == "whole"


def test_another_content_replaces_the_installation(tmp_path: Path) -> None:
    target = tmp_path / "thing"
    for stamp in ("old", "new", "new"):
        ensure(target, lambda folder, stamp=stamp: (folder / stamp).touch(), stamp=stamp)
    assert {path.name for path in target.iterdir()} == {"new", ".installed"}


@pytest.mark.parametrize("in_place", [False, True])
def test_a_failed_build_leaves_nothing_that_looks_installed(tmp_path: Path, in_place: bool) -> None:
    target = tmp_path / "thing"

    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise HarnessError("no")

    with pytest.raises(HarnessError):
        ensure(target, fail, in_place=in_place)
    assert [path.name for path in tmp_path.iterdir()] == ["thing.lock"]
    ensure(target, lambda folder: (folder / "whole").touch(), in_place=in_place)
    assert (target / "whole").exists()
    assert not (target / "half").exists()


@pytest.mark.parametrize("in_place", [False, True])
def test_a_killed_installers_surviving_program_is_waited_for(tmp_path: Path, in_place: bool) -> None:
    """The orphan still writes; a second installer must not build under its hands."""
    target, go = tmp_path / "thing", tmp_path / "go"
    os.mkfifo(go)
    child = "import pathlib, sys; open(sys.argv[2]).read(); (pathlib.Path(sys.argv[1]) / 'orphan').touch()"
    installer = f"""
import sys
sys.path.insert(0, {str(SRC)!r})
from pathlib import Path
from openforgerl.harnesses.installing import ensure, run
def build(folder):
    print('building', flush=True)
    run([sys.executable, '-c', {child!r}, str(folder), {str(go)!r}])
ensure(Path({str(target)!r}), build, in_place={in_place})
"""
    killed = subprocess.Popen([sys.executable, "-c", installer], stdout=subprocess.PIPE)
    assert killed.stdout
    assert killed.stdout.readline() == b"building\n"
    orphan_waits = go.open("w")  # opens once the orphan has opened it for reading
    killed.send_signal(signal.SIGKILL)
    killed.wait(timeout=30)
    second = threading.Thread(
        target=ensure, args=(target, lambda folder: (folder / "whole").touch()), kwargs={"in_place": in_place}
    )
    second.start()
    second.join(timeout=0.5)
    assert second.is_alive()
    assert not (target / "whole").exists()
    orphan_waits.close()
    second.join(timeout=30)
    assert {path.name for path in target.iterdir()} == {"whole", ".installed"}
    assert not list(tmp_path.glob("thing.tmp-*"))


def test_a_failing_program_is_reported_by_its_last_lines() -> None:
    code = "import sys; [print('line', n) for n in range(100)]; sys.exit(3)"
    with pytest.raises(HarnessError, match="exit code 3") as caught:
        run([sys.executable, "-c", code])
    assert "line 99" in str(caught.value)
    assert "line 50" not in str(caught.value)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(HarnessError, match="no-such-program is not installed"):
        run(["no-such-program"])


def test_only_pinned_versions_are_installed(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"0\.1 is not pinned.*0\.73\.1"):
        npm_install(tmp_path, "@mariozechner/pi-coding-agent", "0.1")
    with pytest.raises(HarnessError, match="is not pinned"):
        pip_install(tmp_path, "mini-swe-agent", "0.1")
    assert list(tmp_path.iterdir()) == []


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    assert cache_folder({"OPENFORGERL_CACHE": str(tmp_path)}) == tmp_path
    assert cache_folder({}) == Path.home() / ".cache" / "openforgerl"


def test_an_installed_program_is_found_quickly(tmp_path: Path) -> None:
    target = ensure(tmp_path / "thing", lambda folder: None, stamp="x")
    began = time.perf_counter()
    for _ in range(100):
        ensure(target, lambda folder: pytest.fail("built again"), stamp="x")
    assert time.perf_counter() - began < 1.0
    assert PINS.is_dir()
