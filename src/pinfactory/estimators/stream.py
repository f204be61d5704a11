"""Rows of a stream that are learned from again, so that its order does not decide what is known."""

import copy
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.preprocessing import StandardScaler

from .table import Rows

# Rows that are kept of a stream.
MOST_KEPT = 4096


class Samples(NamedTuple):
    """Samples as they came, with checked targets (or class codes) and weights."""

    X: Float[np.ndarray, "n d"]
    y: np.ndarray
    weight: Float[np.ndarray, " n"]

    @property
    def rows(self) -> Rows:
        """Return all of them as rows, equal ones each for itself."""
        return Rows(np.arange(len(self.X)), self.weight)

    def take(self, index: np.ndarray | slice) -> "Samples":
        """Return some of them."""
        return Samples(*(part[index] for part in self))

    def join(self, other: "Samples") -> "Samples":
        """Return these and others."""
        return Samples(*map(np.concatenate, zip(self, other, strict=True)))


class Stream:
    """A random sample of all rows that have come: those with the smallest of random numbers.

    Parameters
    ----------
    like
        Rows such as those that will come.
    complete
        Whether nothing was learned before the first of them.
    """

    def __init__(self, like: Samples, *, complete: bool) -> None:
        self.complete, self._random = complete, np.random.default_rng(0)
        self.kept, self._numbers = like.take(np.arange(0)), np.empty(0)
        self._weight, self._n = 0.0, 0

    def copy(self) -> "Stream":
        """Return one that further rows can be added to while this one stays as it is."""
        other = copy.copy(self)
        other._random = copy.deepcopy(self._random)
        return other

    @property
    def mean_weight(self) -> float:
        """Return the mean weight of all rows that have come."""
        return self._weight / self._n

    def add(self, samples: Samples) -> None:
        """Let further rows take the place of others."""
        self._weight, self._n = self._weight + samples.weight.sum(), self._n + len(samples.X)
        numbers = np.concatenate([self._numbers, self._random.random(len(samples.X))])
        first = np.sort(np.argsort(numbers, kind="stable")[:MOST_KEPT])
        self.kept, self._numbers = self.kept.join(samples).take(first), numbers[first]

    def draw(self, n_rows: int) -> Samples:
        """Return so many of the rows that are kept, or all of them."""
        n_rows = min(n_rows, len(self.kept.X))
        return self.kept.take(self._random.choice(len(self.kept.X), n_rows, replace=False))


def fits(scaler: StandardScaler, values: np.ndarray, weight: np.ndarray) -> bool:
    """Return whether values still are of a scaler's size.

    They are not if a column's mean has moved by a deviation, or its deviation has doubled.
    """
    mean = np.average(values, axis=0, weights=weight)
    deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weight))
    moved = np.abs(mean - scaler.mean_) > deviation + 1e-9 * scaler.scale_
    return not (moved | (deviation > 2.0 * scaler.scale_)).any()
