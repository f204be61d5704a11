"""What the choice of an expert says about a task, in bits."""

import numpy as np
from jaxtyping import Float, Int


def entropy(probabilities: Float[np.ndarray, "... m"]) -> Float[np.ndarray, "..."]:
    """Return the entropy in bits; zero times log zero is zero."""
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return np.asarray(-np.sum(probabilities * np.log2(safe), axis=-1))


def group_values(values: Float[np.ndarray, " n"], n_groups: int = 4) -> Int[np.ndarray, " n"]:
    """Sort tasks by a parameter: its values where they are few, else groups of equal size."""
    distinct, index = np.unique(values, return_inverse=True)
    if len(distinct) <= n_groups:
        return index
    return np.argsort(np.argsort(values, kind="stable")) * n_groups // len(values)


def information_about(
    group: Int[np.ndarray, " n"], responsibilities: Float[np.ndarray, "n m"]
) -> float:
    """Return I(group; M) = H(M) − H(M|group) in bits."""
    rest = 0.0
    for g in np.unique(group):
        mine = responsibilities[group == g]
        rest += len(mine) / len(group) * float(entropy(mine.mean(axis=0)))
    return max(0.0, float(entropy(responsibilities.mean(axis=0))) - rest)
