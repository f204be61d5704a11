"""Predictions for rows outside the range of the data: lines continue where experts end."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from pinfactory.core.growth import BEYOND_NOISE


class Beyond(NamedTuple):
    """Ranges of which each holds the one before, and the slopes outside each of them.

    The prediction is f(x₁) + s₁·(x₂ − x₁) + … + s_k·(x − x_k), with x_i the nearest point of range
    i. What an expert has learned from its own rows says little about a row far outside. The
    line of all rows that were learned from continues there. Outside a range that holds rows that
    were not learned from, because they would dominate it, the line of all rows in the range
    continues, as far as its slopes are certain. So no row changes a prediction for a row nearer
    than itself.
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
        *,
        certain: bool,
    ) -> "Beyond":
        """Return one range, outside of which the line of some rows continues.

        If only as far as it is `certain`, a slope b with standard error e counts as
        b·(1 − (2e/b)²), or zero where that is negative; the error of a slope grows with the
        distance, and e allows for rows of unequal noise (White 1980).
        """
        weight = weight / weight.mean()
        scaler = StandardScaler().fit(x, sample_weight=weight)
        z = scaler.transform(x)
        line = Ridge().fit(z, y, sample_weight=weight)
        slope = np.reshape(line.coef_, (y.shape[1], -1))
        if certain:
            pull = _pull(z, weight)
            residual = y - line.predict(z).reshape(y.shape)
            doubt = BEYOND_NOISE**2 * (weight[:, None] * residual**2).T @ pull**2
            square = slope**2
            lost = np.divide(doubt, square, out=np.ones_like(slope), where=square > doubt)
            slope = slope * (1.0 - lost)
        return cls(low[None], high[None], slope[None] / scaler.scale_)

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


def _pull(z: Float[np.ndarray, "n d"], weight: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n d"]:
    """Return how much each row moves the slopes: (ZᵀWZ + I)⁻¹Zᵀ, transposed."""
    if z.shape[1] <= len(z):
        gram = (weight[:, None] * z).T @ z + np.eye(z.shape[1])
        return np.linalg.solve(gram, z.T).T
    # The same from the smaller matrix: (ZZᵀW + I)⁻¹Z.
    return np.linalg.solve(z @ z.T * weight + np.eye(len(z)), z)
