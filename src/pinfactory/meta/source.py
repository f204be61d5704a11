"""Tasks as a source of batches: recipes drawn on the host, built inside the training loop."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, PyTree

from pinfactory.core.batches import Source

from .tasks import Episode, Tasks, as_episode, draw_recipes


class TaskSource(Source):
    """Builds the tasks of a step from their recipes."""

    tasks: Tasks

    def batch(self, chosen: PyTree[Array]) -> Episode:
        """Return episodes with a leading axis of tasks."""
        return jax.vmap(lambda recipe: as_episode(self.tasks.build(recipe)))(chosen)


class TaskBatches:
    """Draws the recipes of the tasks of each step (a `core.batches.Batches`).

    Recipes depend on the replica's seed and the number of the step alone, so that neither a
    resume nor the length of a chunk changes them.
    """

    # Steps drawn together: starting a generator costs as much as a thousand numbers.
    BLOCK = 64

    def __init__(self, tasks: Tasks, batch_size: int) -> None:
        self.tasks, self.batch_size = tasks, batch_size

    def __call__(self, seeds: Sequence[Sequence[int]], start: int, n_steps: int) -> PyTree:
        return jax.tree.map(
            lambda *leaves: np.stack(leaves), *(self._steps(seed, start, n_steps) for seed in seeds)
        )

    def _steps(self, seed: Sequence[int], start: int, n_steps: int) -> PyTree:
        blocks = range(start // self.BLOCK, -(-(start + n_steps) // self.BLOCK))
        first = start - blocks[0] * self.BLOCK

        def steps(*leaves: np.ndarray) -> np.ndarray:
            joined = np.concatenate(leaves)
            shaped = joined.reshape(-1, self.batch_size, *joined.shape[1:])
            return shaped[first : first + n_steps]

        return jax.tree.map(steps, *(self._block(seed, block) for block in blocks))

    def _block(self, seed: Sequence[int], block: int) -> PyTree:
        random = np.random.default_rng([*seed, block])
        return draw_recipes(self.tasks, random, self.BLOCK * self.batch_size)
