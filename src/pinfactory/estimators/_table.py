"""Rows that are ready to be learned from, and which of them are set aside for validation."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from pinfactory.core.batches import Epochs
from pinfactory.core.hierarchy import stack
from pinfactory.core.learning import Data
from pinfactory.core.padding import padded, padded_length

RowNumbers = Int[np.ndarray, " _"]

# More rows do not judge better, and would be looked at again and again: a table of twice the rows,
# trained twice as long, would take four times as long to judge.
MOST_JUDGED = 10_000


class Table(NamedTuple):
    """Distinct rows, standardised, with targets the experts can learn from."""

    x: Float[np.ndarray, "n d"]
    y: np.ndarray
    weight: Float[np.ndarray, " n"]

    def take(self, index: RowNumbers) -> "Table":
        """Return some of the rows."""
        return Table(self.x[index], self.y[index], self.weight[index])

    def padded(self, length: int | None = None) -> Data:
        """Return the rows, and others of no weight, in a length that other tables share."""
        length = length or padded_length(len(self.x))
        return Data(*(jax.device_put(padded(column, length)) for column in self))


class Validation(NamedTuple):
    """Which rows each replica learns from, and by which rows it is judged.

    With folds `judged` has a leading axis of replicas; otherwise all are judged by the same rows.
    """

    learned: Sequence[RowNumbers]
    judged: Data
    folded: bool

    @classmethod
    def part(cls, table: Table, order: RowNumbers, share: float, n_replicas: int) -> "Validation":
        """Set one part of the rows aside for all replicas."""
        n_judged = min(max(1, round(share * len(order))), MOST_JUDGED, len(order) - 1)
        judged = table.take(order[:n_judged]).padded()
        return cls([order[n_judged:]] * n_replicas, judged, folded=False)

    @classmethod
    def folds(cls, table: Table, order: RowNumbers, n_folds: int) -> "Validation":
        """Set another part aside for each replica, so that every row judges one of them."""
        parts = [order[fold::n_folds] for fold in range(n_folds)]
        length = padded_length(len(parts[0]))
        judged = stack([table.take(part).padded(length) for part in parts])
        return cls([np.setdiff1d(order, part) for part in parts], judged, folded=True)


class RowBatches:
    """Batches for replicas that may each learn from other rows of one table."""

    def __init__(self, learned: Sequence[RowNumbers], batch_size: int) -> None:
        self._learned = [rows.astype(np.int32) for rows in learned]
        self._epochs = [Epochs(len(rows), batch_size) for rows in learned]

    def __call__(
        self, seeds: Sequence[Sequence[int]], start: int, n_steps: int
    ) -> Int[np.ndarray, "replicas steps batch"]:
        replicas = zip(self._learned, self._epochs, seeds, strict=True)
        drawn = [rows[epochs([seed], start, n_steps)[0]] for rows, epochs, seed in replicas]
        return np.stack(drawn)
