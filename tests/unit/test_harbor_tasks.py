"""Harbor task folders: what is read, and what a broken folder is told."""

from pathlib import Path

import pytest

from openforgerl.errors import TaskError
from openforgerl.tasks.harbor import load_task, load_tasks

EXAMPLES = Path(__file__).parents[2] / "examples" / "shell_tasks"


def write_task(folder: Path, toml: str = "", instruction: str = "Do it.\n", tests: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text(instruction)
    if tests:
        (folder / "tests").mkdir()
        (folder / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    return folder


def test_a_task_folder_is_read_with_its_limits(tmp_path: Path) -> None:
    toml = '[metadata]\nreward_range = [-1, 2]\nfamily = "x"\n[agent]\ntimeout_sec = 5\n[verifier]\ntimeout_sec = 7.5\n'
    task = load_task(write_task(tmp_path / "a-task", toml))
    assert (task.task_id, task.instruction, task.workspace) == ("a-task", "Do it.", None)
    assert (task.agent_timeout_s, task.grader_timeout_s, task.reward_range) == (5.0, 7.5, (-1.0, 2.0))
    assert task.metadata["family"] == "x"


def test_a_workspace_is_found_below_environment(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "t")
    (folder / "environment" / "workspace").mkdir(parents=True)
    assert load_task(folder).workspace == (folder / "environment" / "workspace").resolve()


def test_a_task_without_tests_is_refused_by_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"tests/test\.sh is missing"):
        load_task(write_task(tmp_path / "t", tests=False))


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("[agent", r"task\.toml"),
        ("agent = 3", r"\[agent\] must be a table"),
        ("[agent]\ntimeout_sec = -1", r"timeout_sec = -1 must be a positive number"),
        ("[verifier]\ntimeout_sec = nan", r"timeout_sec = nan"),
        ("[metadata]\nreward_range = [1, 0]", r"reward_range"),
        ("[metadata]\nreward_range = [0, inf]", r"reward_range"),
    ],
)
def test_a_broken_task_toml_is_named_with_its_field(tmp_path: Path, toml: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        load_task(write_task(tmp_path / "t", toml))


def test_a_folder_name_that_is_no_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="task_id"):
        load_task(write_task(tmp_path / "Not_an_id"))


def test_an_empty_instruction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"instruction\.md is empty"):
        load_task(write_task(tmp_path / "t", instruction=" \n"))


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="holds no task"):
        load_tasks(tmp_path)
    with pytest.raises(TaskError, match="does not exist"):
        load_tasks(tmp_path / "none")


def test_the_example_tasks_are_all_read_and_split() -> None:
    train, heldout = load_tasks(EXAMPLES / "train"), load_tasks(EXAMPLES / "heldout")
    assert len(train) >= 40
    assert len(heldout) >= 20
    assert not {task.instruction for task in train} & {task.instruction for task in heldout}
