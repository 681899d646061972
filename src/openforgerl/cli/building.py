"""From the config to built objects: the parts that several commands share."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from openforgerl.cli.config import Config
from openforgerl.cli.members import ENGINES, GRADERS, HARNESSES, member
from openforgerl.engines.base import Engine
from openforgerl.errors import ConfigError, TaskError
from openforgerl.graders.base import Grader
from openforgerl.harnesses.base import Harness
from openforgerl.harnesses.installing import cache_folder
from openforgerl.records import Task
from openforgerl.tasks.harbor import load_tasks
from openforgerl.tokens.codec import Codec
from openforgerl.tokens.template import DEFAULT, Template, own_template
from openforgerl.tokens.vision import Vision


def model_folder(config: Config) -> Path:
    """[model] path, or the default model in the cache. Raises ConfigError where it is no model folder."""
    folder = config.model.path or cache_folder() / "models" / "smollm2-135m-instruct"
    needed = "tokenizer.json" if config.engine.type in ENGINES and config.engine.type != "local" else "config.json"
    if not (folder / needed).is_file():
        hint = "run `make setup`" if config.model.path is None else "name a Hugging Face folder"
        raise ConfigError(f"[model] path: {folder} holds no {needed}; {hint}")
    return folder


def build_template(config: Config, folder: Path) -> Template:
    codec = Codec.load(folder)
    vision = Vision.load(folder, codec)
    if vision is None:
        return Template.load(codec, template_file(config, folder))
    return Template.load(codec, config.model.template or own_template(folder), vision)


def template_file(config: Config, folder: Path) -> Path:
    """[model] template, else the model's own, else the one that is shipped."""
    return config.model.template or own_template(folder) or DEFAULT


async def build_engine(config: Config, folder: Path, source: Path) -> Engine:
    """`source`: where modules of the user's own are looked for. One that is a server elsewhere has answered."""
    settle_libraries()
    made = member("[engine] type", config.engine.type, ENGINES, source)
    if config.engine.type == "local":
        return cast(Engine, made.load(folder, config.engine))
    if config.engine.type in ENGINES:
        return cast(Engine, await made.open(folder, config.engine))
    return cast(Engine, made.load(folder, config.engine.options))


def build_harness(config: Config, source: Path) -> Harness:
    """Installed, ready to plan."""
    harness = cast(Harness, member("[harness] name", config.harness.name, HARNESSES, source)(config.harness))
    harness.install(cache_folder())
    return harness


def build_grader(config: Config, source: Path) -> Grader:
    return cast(Grader, member("[tasks] grader", config.tasks.grader, GRADERS, source)())


def read_tasks(field: str, folder: Path | None) -> tuple[Task, ...]:
    """Raises ConfigError where the folder is not named, TaskError where it is wrong; both name the field."""
    if folder is None:
        raise ConfigError(f"[tasks] {field} is missing: name a folder of Harbor task folders")
    try:
        return load_tasks(folder)
    except TaskError as error:
        raise TaskError(f"[tasks] {field}: {error}") from error


def check_families(tasks: Sequence[Task], families: Sequence[str] | None) -> None:
    """The warm start's selection of training tasks. Raises ConfigError where it names what is not there, or nothing."""
    if families is None:
        return
    known = sorted({task.metadata["family"] for task in tasks if "family" in task.metadata})
    there = f"the families of [tasks] train are {', '.join(known)}" if known else "no task of [tasks] train names one"
    if not families:
        raise ConfigError(f"[trainer.sft] families = []: this selects no task; leave it out for all; {there}")
    for family in families:
        if family not in known:
            raise ConfigError(f"[trainer.sft] families: {family!r} is unknown; {there}")


def check_port(host: str, port: int) -> None:
    """Asked before a run's folder is made. Raises ConfigError where the proxy could not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            field = f"port = {port}" if error.errno == errno.EADDRINUSE else f"host = {host!r}"
            raise ConfigError(
                f"[proxy] {field}: cannot listen on {host}:{port} ({error.strerror}); choose another"
            ) from error


def settle_libraries() -> None:
    """Before torch is imported: OpenMP threads that spin would starve the harnesses, and loading needs no bar."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # libgomp, of torch's CPU wheel
    os.environ.setdefault("KMP_BLOCKTIME", "0")  # Intel's OpenMP
