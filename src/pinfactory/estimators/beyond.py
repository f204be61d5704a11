"""Predictions for rows outside the range of the data: lines continue where experts end."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler


class Beyond(NamedTuple):
    """Ranges of which each holds the one before, and the slopes outside each of them.

    The prediction is f(x₁) + s₁·(x₂ − x₁) + … + s_k·(x − x_k), with x_i the nearest point of range
    i. What an expert has learned from its own rows says little about a row far outside. The
    line of all rows that were learned from continues there. Rows even farther out were not learned
    from, because they would dominate it; a line of all rows continues where they begin.
    """

    # The ends of the ranges, in the units of the experts.
    low: Float[np.ndarray, "k d"]
    high: Float[np.ndarray, "k d"]
    slope: Float[np.ndarray, "k t d"]  # s₁, …, s_k

    @classmethod
    def stack(cls, parts: Sequence["Beyond"]) -> "Beyond":
        """Return one with the ranges of several, the smallest first."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))

    @classmethod
    def fit(
        cls,
        low: Float[np.ndarray, " d"],
        high: Float[np.ndarray, " d"],
        x: Float[np.ndarray, "n d"],
        y: Float[np.ndarray, "n t"],
        weight: Float[np.ndarray, " n"],
    ) -> "Beyond":
        """Return one range, outside of which the line of some rows continues."""
        scaler = StandardScaler().fit(x, sample_weight=weight)
        line = Ridge().fit(scaler.transform(x), y, sample_weight=weight)
        slope = np.reshape(line.coef_, (y.shape[1], -1)) / scaler.scale_
        return cls(low[None], high[None], slope[None])

    def divide(
        self, x: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "k n d"]]:
        """Return x₁, and x₂ − x₁, …, x − x_k."""
        ends = [np.clip(x, low, high) for low, high in zip(self.low, self.high, strict=True)]
        return ends[0], np.diff([*ends, x], axis=0)

    def is_possible(self, n_inputs: int, n_targets: int) -> bool:
        """Return whether arrays, which may come from a file, fit a regressor."""
        n_ranges = len(self.slope)
        ends, slopes = (n_ranges, n_inputs), (n_ranges, n_targets, n_inputs)
        return (
            n_ranges > 0
            and all(
                part.shape == shape and part.dtype == np.float64 and np.isfinite(part).all()
                for part, shape in zip(self, (ends, ends, slopes), strict=True)
            )
            and bool((self.low <= self.high).all())
        )
