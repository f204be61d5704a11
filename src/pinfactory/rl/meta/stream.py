"""New tasks for every iteration, drawn on the host."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from pinfactory.core.batches import Source

from .families import TaskFamily


class DrawnTasks(Source):
    """A source whose batch is the tasks that were drawn, as they are."""

    def batch(self, chosen: PyTree[Array]) -> PyTree[Array]:
        """Return the parameters of the tasks."""
        return chosen


class TaskStream:
    """Draws `n_tasks` tasks for every step.

    They depend on the seed and the number of the step alone, so that neither a resume nor the
    length of a chunk changes them.
    """

    def __init__(self, family: TaskFamily, n_tasks: int) -> None:
        self.family, self.n_tasks = family, n_tasks

    def __call__(self, seeds: Sequence[Sequence[int]], start: int, n_steps: int) -> PyTree:
        def stacked(*leaves: Any) -> np.ndarray:
            arrays = np.stack([np.asarray(leaf) for leaf in leaves])
            return arrays.reshape(len(seeds), n_steps, *arrays.shape[1:])

        drawn = [
            self.family.draw(np.random.default_rng([*seed, step]), self.n_tasks)
            for seed in seeds
            for step in range(start, start + n_steps)
        ]
        return jax.tree.map(stacked, *drawn)
