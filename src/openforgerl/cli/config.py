"""The one TOML tree of all commands. Each part is defined beside the class that it configures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from openforgerl.engines.local_config import LocalEngineConfig
from openforgerl.engines.remote_config import RemoteEngineConfig
from openforgerl.harnesses.base import HarnessConfig
from openforgerl.proxy.config import ProxyConfig
from openforgerl.rollout.config import RolloutConfig
from openforgerl.runtimes.process import ProcessRuntimeConfig
from openforgerl.trainers.credit import CreditConfig
from openforgerl.trainers.local_config import LocalTrainerConfig
from openforgerl.workflows.config import EvaluationConfig, GrpoConfig, SftConfig


class ModelConfig(BaseModel):
    """[model]: named once, for the engine, the trainer and the template."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path | None = None
    """A Hugging Face folder; None: SmolLM2-135M-Instruct as `make setup` leaves it in the cache."""
    template: Path | None = None
    """Holds a chat template: a .jinja file, or a tokenizer_config.json. None: the model's own, else the shipped one."""


class EngineConfig(LocalEngineConfig, RemoteEngineConfig):
    """[engine]: what samples. Fields of the local engine, and of engines that are reached by URL."""

    type: str = "local"
    """A member (local, vllm, sglang, upstream), or `package.module:Class` of the user's own, made by
    `Class.load(model folder, options)`."""
    options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    """For an engine of the user's own."""


class StoreConfig(BaseModel):
    """[store]: where `serve` records its sessions; a training run has its own folder."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path = Path("runs/serve/store")
    """Seen from the current folder."""


class TasksConfig(BaseModel):
    """[tasks]: folders of Harbor task folders, and what grades them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    train: Path | None = None
    heldout: Path | None = None
    """Tasks that are never trained on."""
    grader: str = "tests"
    """A member (tests), or `package.module:Class` of the user's own, made by `Class()`."""


class TrainerConfig(LocalTrainerConfig):
    """[trainer]: the local trainer, the warm start and GRPO."""

    seed: int = Field(default=0, ge=0)
    """Of the order of tasks and demonstrations. What the engine samples is not repeated by a seed."""
    sft: SftConfig = Field(default_factory=SftConfig)
    grpo: GrpoConfig = Field(default_factory=GrpoConfig)
    credit: CreditConfig = Field(default_factory=CreditConfig)


class Config(BaseModel):
    """The whole tree. Every part has defaults, so that a file says only what it changes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: ModelConfig = Field(default_factory=ModelConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    proxy: ProxyConfig = Field(default_factory=ProxyConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    harness: HarnessConfig = Field(default_factory=HarnessConfig)
    tasks: TasksConfig = Field(default_factory=TasksConfig)
    runtime: ProcessRuntimeConfig = Field(default_factory=ProcessRuntimeConfig)
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)


RELATIVE_TO_FILE = (
    ("model", "path"), ("model", "template"), ("proxy", "tls_cert"), ("proxy", "tls_key"), ("tasks", "train"),
    ("tasks", "heldout"),
)  # fmt: skip
"""Inputs: a relative path of a TOML file is seen from that file. What is written goes below the current folder."""
