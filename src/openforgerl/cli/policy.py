"""Weights of a run: the base model, or the checkpoint that it has come to. Imports torch; imported late."""

from __future__ import annotations

from pathlib import Path

from openforgerl.cli.building import template_file
from openforgerl.cli.config import Config
from openforgerl.engines.local import LocalEngine
from openforgerl.trainers.local import LocalTrainer
from openforgerl.workflows.run_folder import Progress, RunFolder


def load_policy(config: Config, model: Path, folder: RunFolder, progress: Progress) -> tuple[LocalEngine, LocalTrainer]:
    """Engine and trainer with equal weights. Raises EngineError, TrainerError."""
    version = progress.policy_version
    weights = folder.checkpoint(version) if version else model
    engine = LocalEngine.load(weights, config.engine, policy_version=version)
    template = template_file(config, model)
    # A tokenizer_config.json with a template in it is carried as it is.
    chat_template = template if template.suffix != ".json" else None
    trainer = LocalTrainer.load(weights, config.trainer, chat_template=chat_template)
    if version:
        trainer.load_state(folder.state(version))
    return engine, trainer
