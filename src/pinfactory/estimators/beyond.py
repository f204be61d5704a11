"""Numbers for rows farther out than all that were learned from: one line goes on from there."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler


class Beyond(NamedTuple):
    """Where experts end, and how the answers go on: f(x̃) + s·(x − x̃), with x̃ within the ends.

    What an expert has learned of its own rows says little of a row many times as far away. Rows as
    far as that are no part of its training either, but all of them are part of one line.

    Attributes
    ----------
    low, high
        The ends, in the units of the experts.
    slope
        s, that of one line of all rows.
    """

    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    slope: Float[np.ndarray, "t d"]

    @classmethod
    def fit(
        cls,
        low: Float[np.ndarray, " d"],
        high: Float[np.ndarray, " d"],
        x: Float[np.ndarray, "n d"],
        y: Float[np.ndarray, "n t"],
        weight: Float[np.ndarray, " n"],
    ) -> "Beyond":
        """Fit the line to rows whose inputs may be many deviations away."""
        scaler = StandardScaler().fit(x, sample_weight=weight)
        line = Ridge().fit(scaler.transform(x), y, sample_weight=weight)
        slope = np.reshape(line.coef_, (y.shape[1], -1)) / scaler.scale_
        return cls(low, high, slope)

    def divide(
        self, x: Float[np.ndarray, "n d"]
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "n d"]]:
        """Return x̃ and x − x̃."""
        inside = np.clip(x, self.low, self.high)
        return inside, x - inside

    def is_possible(self, n_inputs: int, n_targets: int) -> bool:
        """Return whether arrays, which may come from a file, fit a regressor."""
        shapes = (n_inputs,), (n_inputs,), (n_targets, n_inputs)
        return all(
            part.shape == shape and part.dtype == np.float64 and np.isfinite(part).all()
            for part, shape in zip(self, shapes, strict=True)
        ) and bool((self.low <= self.high).all())
