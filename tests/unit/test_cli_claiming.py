"""A run's folder is taken once, and gone on with under the same config only."""

import resource
from pathlib import Path

import pytest

from openforgerl.cli.claiming import claim, run_id
from openforgerl.cli.loading import build
from openforgerl.errors import ConfigError, StoreError
from openforgerl.records import check_id
from openforgerl.workflows.run_folder import Progress, RunFolder

CONFIG = build({"trainer": {"lr": 1e-5}}, "test")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def test_a_new_run_begins_and_is_gone_on_with(run: RunFolder) -> None:
    assert claim(run, CONFIG, resume=False) == Progress()
    run.commit(Progress(sft_steps=2, policy_version=2))
    assert claim(run, CONFIG, resume=True).sft_steps == 2


def test_a_run_is_not_begun_twice(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    with pytest.raises(ConfigError, match="--resume"):
        claim(run, CONFIG, resume=False)


def test_a_changed_field_stops_a_resume_and_is_named(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    changed = build({"trainer": {"lr": 2e-5}}, "test")
    with pytest.raises(ConfigError, match=r"trainer\.lr = 1e-05, not 2e-05"):
        claim(run, changed, resume=True)


def test_places_may_change_between_resumes(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    moved = build({"trainer": {"lr": 1e-5}, "proxy": {"port": 1234}, "store": {"path": "elsewhere"}}, "test")
    assert claim(run, moved, resume=True) == Progress()


def test_a_run_killed_before_its_first_commit_begins_anew(run: RunFolder) -> None:
    run.create()
    run.config.write_text("half a con")
    assert claim(run, CONFIG, resume=True) == Progress()
    assert claim(run, CONFIG, resume=True) == Progress()


def test_a_resume_of_nothing_is_refused(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        claim(run, CONFIG, resume=True)


def test_run_ids_are_ids_and_differ_by_place(tmp_path: Path) -> None:
    names = ["run", "My_Run.1", "ü" * 80, "x" * 80]
    ids = [run_id(RunFolder(tmp_path / below / name)) for below in ("a", "b") for name in names]
    for name in ids:
        check_id("run_id", name)
    assert len(set(ids)) == len(ids)
    assert run_id(RunFolder(tmp_path / "run")) == run_id(RunFolder(tmp_path / "x" / ".." / "run"))


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["thesis.txt", "checkpoints/v3/weights", "state/notes", "store/calls.sqlite"])
def test_a_folder_with_files_of_the_users_is_refused_and_left_alone(run: RunFolder, resume: bool, name: str) -> None:
    file = run.root / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(ConfigError, match="name a new or an empty folder"):
        claim(run, CONFIG, resume=resume)
    assert [path for path in run.root.rglob("*") if path.is_file()] == [file]


def test_a_folder_that_was_deleted_to_make_room_is_there_again(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    run.logs.rmdir()
    claim(run, CONFIG, resume=True)
    assert run.logs.is_dir()


def test_an_empty_folder_is_taken(run: RunFolder) -> None:
    run.root.mkdir()
    assert claim(run, CONFIG, resume=False) == Progress()


def test_pruning_removes_versions_and_their_half_written_ones_only(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    checkpoints = run.root / "checkpoints"
    for name in ("v1", "v2", ".writing-v3", ".old-v1", "v1-backup", "best", ".writing-notes"):
        (checkpoints / name).mkdir()
    (checkpoints / "v7").write_text("a file")
    (checkpoints / "v8").symlink_to(run.store)
    run.prune(checkpoints=frozenset({2}), states=frozenset())
    left = {path.name for path in checkpoints.iterdir()}
    assert left == {"v2", "v1-backup", "best", ".writing-notes", "v7", "v8"}


def test_a_commit_that_cannot_be_written_leaves_the_earlier_one(run: RunFolder) -> None:
    claim(run, CONFIG, resume=False)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(StoreError, match=r"progress\.json cannot be written: File too large"):
            run.commit(Progress(sft_steps=1, metrics=({"name": "x" * 2000},)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.read_progress() == Progress()
    assert not list(run.root.glob("*.tmp"))


def test_the_progress_of_a_path_that_is_no_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="holds no run"):
        RunFolder(tmp_path / "file").read_progress()
