"""A config error is one line that names the file, the field, the value and the way out."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openforgerl.cli.config import Config
from openforgerl.cli.loading import blaming, build, load_config
from openforgerl.cli.members import HARNESSES, member
from openforgerl.cli.resolved import to_toml
from openforgerl.errors import ConfigError

FINDINGS = {
    "[rollout]\nconcurency = 3": "[rollout] concurency is unknown: did you mean [rollout] concurrency?",
    "[rollout]\nconcurrency = 0": "[rollout] concurrency = 0: input should be greater than or equal to 1",
    "[modle]\npath = 'x'": "[modle] is unknown: did you mean [model]?",
    "[proxy]\ngroup_size = 4": "[proxy] group_size is unknown: it belongs to [trainer.grpo]",
    "[store]\nzzz = 4": "[store] zzz is unknown: the keys of [store] are path",
    "[runtime.limits]\nmemory = 3": "[runtime.limits] memory is unknown: did you mean [runtime.limits] memory_bytes?",
    "[engine]\ndtype = 'fp8'": "[engine] dtype = 'fp8': input should be 'float32' or 'bfloat16'",
    "[trainer]\nlr = nan": "[trainer] lr = nan: give a finite number",
    "model = 3": "[model] = 3: this is a section, give it keys",
    "[trainer]\nbetas = [0.9, 'x']": "[trainer] betas[1] = 'x': input should be a valid number",
    "a": "is not TOML: Expected '=' after a key",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


@pytest.mark.parametrize("text", FINDINGS)
def test_a_wrong_field_is_named_with_the_way_out(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(str(file))
    assert FINDINGS[text] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml does not exist"):
        load_config(tmp_path / "none.toml")


def test_inputs_are_seen_from_the_file_and_outputs_are_not(file: Path) -> None:
    file.write_text("[tasks]\ntrain = 'train'\n[store]\npath = 'kept'\n[model]\npath = '/m'")
    config = load_config(file)
    assert config.tasks.train == file.parent.resolve() / "train"
    assert config.store.path == Path("kept")
    assert config.model.path == Path("/m")


def test_overrides_are_toml_values_or_plain_text_and_come_last(file: Path) -> None:
    file.write_text("[rollout]\nconcurrency = 2")
    config = load_config(file, ["rollout.concurrency=5", "harness.name=react", "trainer.sft.families=['a', 'b']"])
    assert (config.rollout.concurrency, config.harness.name) == (5, "react")
    assert config.trainer.sft.families == ("a", "b")


@pytest.mark.parametrize("override", ["concurrency", "=3", "rollout.concurrency.deep=1", "rollout..x=1"])
def test_a_malformed_override_is_shown(file: Path, override: str) -> None:
    file.write_text("[rollout]\nconcurrency = 2")
    with pytest.raises(ConfigError, match="--set"):
        load_config(file, [override])


def test_none_can_be_said_where_it_is_not_the_default() -> None:
    assert build({"trainer": {"max_gap": "none"}}, "test").trainer.max_gap is None
    assert build({"harness": {"system_prompt": "none"}}, "test").harness.system_prompt == "none"


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "harness": st.fixed_dictionaries({"system_prompt": st.text(), "tools": st.lists(st.text())}),
            "trainer": st.fixed_dictionaries(
                {"lr": st.floats(1e-300, 1e300), "max_gap": st.just("none"), "credit": st.just({"min_group": 7})}
            ),
            "engine": st.fixed_dictionaries({"options": st.dictionaries(st.text(), st.text() | st.booleans())}),
            "proxy": st.fixed_dictionaries({"port": st.integers(0, 65535), "strip_system_lines": st.lists(st.text())}),
        },
    )
)
def test_the_resolved_config_reads_back_as_the_same(tree: dict[str, object]) -> None:
    config = build(tree, "test")
    assert build(tomllib.loads(to_toml(config)), "resolved") == config


def test_every_section_has_defaults() -> None:
    assert build({}, "test") == Config()


@pytest.mark.parametrize("name", HARNESSES)
def test_every_harness_of_ours_is_found(name: str, tmp_path: Path) -> None:
    assert member("[harness] name", name, HARNESSES, tmp_path).name == name


def test_a_class_of_the_users_own_is_found_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "my_own_harness.py").write_text("class Mine:\n    name = 'mine'\n")
    assert member("[harness] name", "my_own_harness:Mine", HARNESSES, tmp_path).name == "mine"
    with pytest.raises(ConfigError, match="no attribute 'Other'"):
        member("[harness] name", "my_own_harness:Other", HARNESSES, tmp_path)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Pi", "there are react, pi"),
        ("recat", "did you mean 'react'"),
        ("no_such_module:X", "no module no_such_module"),
    ],
)
def test_an_unknown_harness_names_the_known_ones(name: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        member("[harness] name", name, HARNESSES, tmp_path)
    assert "[harness] name" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message", "place"),
    [
        ("rollout.concurrency=0", "[rollout] concurrency = 0: wrong", "--set rollout.concurrency=0"),
        ("trainer.sft.families=['a']", "[trainer.sft] families[0] = 1: wrong", "--set trainer.sft.families=['a']"),
        ("nothing.at=all", "[nothing] is unknown", "--set nothing.at=all"),
        ("rollout.max=1", "[rollout] max_tokens = 0: wrong", "run.toml"),
        ("rollout.concurrency=3", "[rollout] deadline_s = 0: wrong", "run.toml"),
    ],
)
def test_a_wrong_field_is_blamed_on_where_it_was_written(override: str, message: str, place: str) -> None:
    with pytest.raises(ConfigError) as raised, blaming(Path("run.toml"), [override]):
        raise ConfigError(message)
    assert str(raised.value) == f"{place}: {message}"
