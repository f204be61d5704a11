"""What a distribution of tasks is: recipes drawn on the host, built into samples when compiled.

A recipe is a few small arrays (an amplitude and a phase, or the numbers of some images). NumPy
draws recipes on the host, because random numbers take JAX seconds to compile; `build` turns one
recipe into a task's samples and is compiled into the learner's step.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, PyTree


class Samples(NamedTuple):
    """Inputs and targets, with a leading axis of samples."""

    x: Array
    y: Array


class Episode(NamedTuple):
    """One task: what an expert adapts to, and what it is judged by afterwards."""

    support: Samples
    query: Samples


@runtime_checkable
class Tasks(Protocol):
    """A distribution of tasks: an Equinox module whose arrays are passed to compiled steps."""

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> PyTree:
        """Return the recipes of `n_tasks` tasks: NumPy arrays with a leading axis of tasks.

        `split` is "train", "validation" or "test".
        """
        ...

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of the task of one recipe; pure, and compiled by the caller."""
        ...
