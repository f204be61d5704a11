"""What the choice of an expert says about a task, in bits."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class MetaInformation:
    """Information an agent processes, in bits, measured on tasks drawn for that.

    Attributes
    ----------
    selector
        I(T;M): what the selector has to know of a task to choose an expert.
    experts
        I(S;A|M): what the chosen expert has to know of a state to act; for box actions what it
        pays with its Gaussian prior, an upper bound.
    responsibility
        p(m): the share of the tasks that each expert handles.
    effective_experts
        2^H(M): the number of equally busy experts that would be as diverse.
    about
        I(parameter; M) for every parameter of the tasks: of its two values, or of its quarters.
    """

    selector: float
    experts: float
    responsibility: np.ndarray
    effective_experts: float
    about: dict[str, float]


def entropy(probabilities: Float[np.ndarray, "... m"]) -> Float[np.ndarray, "..."]:
    """Return the entropy in bits; zero times log zero is zero."""
    safe = np.where(probabilities > 0, probabilities, 1.0)
    return np.asarray(-np.sum(probabilities * np.log2(safe), axis=-1))


def groups(values: Float[np.ndarray, " n"], n_groups: int = 4) -> Int[np.ndarray, " n"]:
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
