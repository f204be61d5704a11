"""Which features a picture shows, and how far it reaches."""

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np


def feature_names(estimator: Any, n_features: int) -> list[str]:
    """Return the names seen in `fit`, or x0, x1 and so on."""
    return list(getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(n_features)]))


def feature_indices(features: Sequence[int | str] | None, names: list[str]) -> list[int]:
    """Return the positions of one or two features given by number or name."""
    if features is None:
        return list(range(min(2, len(names))))
    indices = [names.index(f) if f in names else f for f in features]
    known = all(isinstance(i, numbers.Integral) and 0 <= i < len(names) for i in indices)
    if not known or len(set(indices)) != len(features) or len(indices) not in (1, 2):
        raise ValueError(
            f"`features` must be one or two of the numbers below {len(names)} or names of "
            f"features, but got {features!r}."
        )
    return [int(i) for i in indices]


def reach(values: np.ndarray, resolution: int) -> np.ndarray:
    """Return a grid a little beyond the values."""
    low, high = values.min(), values.max()
    margin = 0.08 * (high - low) or 1.0
    return np.linspace(low - margin, high + margin, resolution)
