"""The trainer that ships inside: AdamW in fp32, in this process, over packed rows.

A step that is not finite, or whose rows are not this policy's, raises TrainerError and changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from openforgerl.errors import TrainerError
from openforgerl.records import Batch, Receipt, TokenRow, Update
from openforgerl.trainers import local_checkpoint
from openforgerl.trainers.local_config import LocalTrainerConfig
from openforgerl.trainers.local_model import PackedModel
from openforgerl.trainers.local_objectives import PolicyObjective, SftObjective
from openforgerl.trainers.local_pass import Part, Pass
from openforgerl.trainers.local_receipts import Comparison
from openforgerl.trainers.local_terms import RowTable
from openforgerl.trainers.packing import pack

Phase = Literal["", "sft", "rl"]
_ROUNDING_MOST = 10.0
"""A gap of so many limits is no rounding."""


class LocalTrainer:
    """Implements `Trainer`. The optimizer starts afresh where SFT gives way to RL, or the other way round."""

    def __init__(self, model: Any, config: LocalTrainerConfig, files: Mapping[str, bytes]) -> None:
        """`files`: what a checkpoint carries beside config and weights."""
        self._model, self._config, self._files = model.eval(), config, dict(files)
        self._packed = PackedModel(model)
        self._phase: Phase = ""
        self._optimizer = self._new_optimizer()
        self._step = 0

    @classmethod
    def load(cls, model: Path, config: LocalTrainerConfig, *, chat_template: Path | None = None) -> LocalTrainer:
        """From a Hugging Face folder; checkpoints carry `chat_template` in place of the folder's own, if it is given.

        Raises ConfigError where it is no model folder, TrainerError where it cannot be loaded.
        """
        files = local_checkpoint.companions(model)
        if chat_template is not None:
            files["chat_template.jinja"] = chat_template.read_bytes()
        return cls(_load_fp32(model), config, files)

    @property
    def policy_version(self) -> int:
        """The number of updates so far."""
        return self._step

    def logprobs(self, rows: Sequence[TokenRow]) -> list[list[float]]:
        """The current policy's log-prob of each token given its prefix, at the row's temperature; 0.0 at place 0."""
        table = RowTable(rows)
        values = np.zeros(len(table.row_of))

        def keep(part: Part) -> None:
            values[part.places] = part.logprobs.numpy()

        self._pass(table).forward(table.predicted, keep)
        return [values[start : start + len(row.token_ids)].tolist() for row, start in table.with_starts()]

    def receipts(self, rows: Sequence[TokenRow]) -> tuple[Receipt, ...]:
        """Forward only. Raises TrainerError for rows whose log-probs are not a policy's."""
        table = RowTable(rows)
        return self._second_look(rows, self._compared(table, self._packed))

    def sft_step(self, rows: Sequence[TokenRow]) -> Update:
        """One AdamW step on the mean negative log-likelihood of the tokens with mask 1, at temperature 1."""
        objective = SftObjective(rows)
        run = self._pass(objective.table)
        self._model.zero_grad(set_to_none=True)
        run.backward(objective.table.trained, objective, np.zeros_like(objective.table.trained), lambda part: None)
        return self._finish("sft", self._config.sft_lr, objective.metrics() | run.sizes())

    def policy_step(self, batch: Batch) -> tuple[Update, tuple[Receipt, ...]]:
        """One AdamW step on the batch's policy loss; proximal is the policy before it.

        Receipts are of the rows that were trained, in the batch's order: rows of weight 0 or without a token of mask 1
        are not forwarded. Raises TrainerError where nothing can be trained, or the log-prob gap exceeds `max_gap`.
        """
        rows = [row for row in batch.rows if row.weight and any(row.row.loss_mask)]
        objective = PolicyObjective(rows, batch.denominator, self._config)
        run = self._pass(objective.table)
        self._model.zero_grad(set_to_none=True)
        run.backward(objective.table.trained, objective, objective.table.comparable, objective.watch)
        first = objective.comparison.receipts(self._step)
        receipts = self._second_look(objective.table.rows, first)
        self._check_gap(receipts)
        again = sum(one is not other for one, other in zip(first, receipts, strict=True))
        counts = {"rows_skipped": float(len(batch.rows) - len(rows)), "rows_measured_again": float(again)}
        metrics = objective.metrics() | run.sizes() | counts
        return self._finish("rl", self._config.lr, metrics), receipts

    def state(self) -> Mapping[str, Tensor]:
        """The live parameters by name, tied ones once, without copies: valid until the next step."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def save(self, folder: Path) -> None:
        """A Hugging Face folder in fp32, replacing what stood there, whole or not at all."""
        local_checkpoint.save_model(self._model, folder, self._files)

    def save_state(self, folder: Path) -> None:
        """Optimizer, step and random state; belongs to the weights as they are now."""
        facts = {"step": self._step, "phase": self._phase}
        local_checkpoint.save_state(folder, model=self._model, optimizer=self._optimizer, facts=facts)

    def load_state(self, folder: Path) -> None:
        """Raises TrainerError where the state is not one of these weights."""
        facts = local_checkpoint.load_facts(folder)
        optimizer = self._new_optimizer()
        local_checkpoint.load_state(folder, model=self._model, optimizer=optimizer, weights=facts["weights"])
        self._optimizer, self._step, self._phase = optimizer, facts["step"], facts["phase"]

    def _pass(self, table: RowTable, model: PackedModel | None = None) -> Pass:
        share = self._config.pack and self._packed.exact_trie
        packs = pack([row.token_ids for row in table.rows], budget=self._config.token_budget, share=share)
        return Pass(model=model or self._packed, table=table, packs=packs, chunk=self._config.logit_chunk)

    def _compared(self, table: RowTable, model: PackedModel) -> tuple[Receipt, ...]:
        comparison = Comparison(table)
        self._pass(table, model).forward(table.comparable, lambda part: comparison.add(part.places, part.logprobs))
        return comparison.receipts(self._step)

    def _second_look(self, rows: Sequence[TokenRow], receipts: tuple[Receipt, ...]) -> tuple[Receipt, ...]:
        """A row that misses `max_gap` by what rounding can do is measured again, this side in float64.

        A float32 forward is off by up to 5e-5 itself; the gap is to be the engine's, not the sum of both.
        """
        limit = self._config.max_gap
        missed = [i for i, one in enumerate(receipts) if limit and limit < one.max_gap <= _ROUNDING_MOST * limit]
        if not missed:
            return receipts
        again = self._compared(RowTable([rows[place] for place in missed]), self._packed.in_float64())
        sharp = dict(zip(missed, again, strict=True))
        return tuple(sharp.get(place, one) for place, one in enumerate(receipts))

    def _new_optimizer(self) -> torch.optim.AdamW:
        config = self._config
        return torch.optim.AdamW(
            self._model.parameters(),
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    def _finish(self, phase: Phase, lr: float, metrics: dict[str, float]) -> Update:
        """Applies the accumulated gradient, or raises and leaves weights and optimizer as they were."""
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.grad_clip).item()
        if not (math.isfinite(metrics["loss"]) and math.isfinite(norm)):
            self._model.zero_grad(set_to_none=True)
            raise TrainerError(f"step {self._step + 1}: loss {metrics['loss']}, gradient norm {norm}: nothing applied")
        if phase != self._phase:
            self._phase, self._optimizer = phase, self._new_optimizer()
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.step()
        self._model.zero_grad(set_to_none=True)
        self._step += 1
        return Update(step=self._step, policy_version=self._step, metrics=metrics | {"grad_norm": norm, "lr": lr})

    def _check_gap(self, receipts: Sequence[Receipt]) -> None:
        limit = self._config.max_gap
        worst = max(receipts, key=lambda receipt: receipt.max_gap)
        if limit is not None and not worst.max_gap <= limit:
            self._model.zero_grad(set_to_none=True)
            raise TrainerError(
                f"row {worst.session_id}/{worst.branch}: engine and trainer differ by {worst.max_gap:.2g} in log-prob, "
                f"more than [trainer] max_gap = {limit:g} (policy version {worst.policy_version}): nothing applied; "
                "where no more than rounding is at work, go on with --resume --set trainer.max_gap=..."
            )


def _load_fp32(folder: Path) -> Any:
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise TrainerError(f"[model] path {str(folder)!r}: {error}") from error
