"""Engine against trainer: the log-prob gap of every row, while its policy lives."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from openforgerl.errors import TrainerError
from openforgerl.records import Receipt
from openforgerl.trainers.local_terms import RowTable
from openforgerl.trainers.packing import Ints


class Comparison:
    """Collects |engine - trainer| over the sampled tokens of a table, whatever their mask."""

    def __init__(self, table: RowTable) -> None:
        """Raises TrainerError where a row's log-probs are not those of softmax(logits / temperature)."""
        for index, row in enumerate(table.rows):
            if row.logprob_kind != "sampled":
                raise TrainerError(
                    f"row {row.session_id}/{row.branch}: logprob_kind {row.logprob_kind!r} is no policy's; "
                    "only rows sampled by an engine with logprob_kind 'sampled' can be compared or trained by RL"
                )
            if not row.temperature > 0 and table.comparable[table.row_of == index].any():
                raise TrainerError(
                    f"row {row.session_id}/{row.branch}: temperature {row.temperature}: sample with temperature > 0"
                )
        self._table = table
        self._gaps = np.zeros(len(table.row_of))
        self._seen = np.zeros(len(table.row_of), dtype=np.bool_)

    def add(self, places: Ints, logprobs: Tensor) -> None:
        kept = self._table.comparable[places]
        inside = places[kept]
        gaps = np.abs(logprobs.numpy()[kept] - self._table.behaviour[inside])
        self._gaps[inside] = np.where(np.isnan(gaps), np.inf, gaps)
        self._seen[inside] = True

    def receipts(self, policy_version: int) -> tuple[Receipt, ...]:
        return tuple(self._receipt(index, policy_version) for index in range(len(self._table.rows)))

    def metrics(self) -> dict[str, float]:
        gaps = self._gaps[self._seen]
        return {"gap_max": float(gaps.max()), "gap_mean": float(gaps.mean())} if len(gaps) else {}

    def _receipt(self, index: int, policy_version: int) -> Receipt:
        row, start = self._table.rows[index], int(self._table.starts[index])
        part = slice(start, start + len(row.token_ids))
        gaps = self._gaps[part][self._seen[part]]
        return Receipt(
            session_id=row.session_id,
            branch=row.branch,
            policy_version=policy_version,
            tokens=len(gaps),
            max_gap=float(gaps.max()) if len(gaps) else 0.0,
            mean_gap=float(gaps.mean()) if len(gaps) else 0.0,
        )
