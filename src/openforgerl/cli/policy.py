"""Weights of a run: the base model, or the checkpoint that it has come to. Imports torch; imported late."""

from __future__ import annotations

from pathlib import Path

from openforgerl.cli.config import Config
from openforgerl.engines.local import LocalEngine
from openforgerl.tokens.template import DEFAULT
from openforgerl.trainers.local import LocalTrainer
from openforgerl.workflows.run_folder import Progress, RunFolder


def load_policy(config: Config, model: Path, folder: RunFolder, progress: Progress) -> tuple[LocalEngine, LocalTrainer]:
    """Engine and trainer with equal weights. Raises EngineError, TrainerError."""
    version = progress.policy_version
    weights = folder.checkpoint(version) if version else model
    engine = LocalEngine.load(weights, config.engine, policy_version=version)
    trainer = LocalTrainer.load(weights, config.trainer, chat_template=config.model.template or DEFAULT)
    if version:
        trainer.load_state(folder.state(version))
    return engine, trainer
