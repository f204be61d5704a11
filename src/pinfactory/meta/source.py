"""Tasks as a source of batches: recipes drawn on the host, built inside the training loop.

Some training tasks are drawn before learning begins, for shapes, statistics and checks; and tasks
are learned in standard units, so that a β and a step size mean the same whatever the data's units.
"""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from pinfactory.core.batches import Source
from pinfactory.core.compiling import compiled_fully

from .tasks import Episode, Samples, Tasks, as_episode, draw_recipes, task_subjects

# Statistics of larger numbers overflow in single precision.
LARGEST_PIXEL = 1e6


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


# -------------------------------------------------------------------------- before learning


def sample_tasks(tasks: Any, seed: int, n_tasks: int = 500) -> Episode:
    """Return some training tasks, as host arrays with a leading axis of tasks."""
    recipes = draw_recipes(tasks, np.random.default_rng(seed), n_tasks)
    try:
        seen = jax.tree.map(np.asarray, _build(TaskSource(tasks), recipes))
    except jax.errors.TracerArrayConversionError as error:
        raise TypeError(
            "`build` must compute with JAX (jax.numpy in place of numpy), because it runs inside "
            "the compiled training loop, but it handed its recipe to NumPy."
        ) from error
    for name, samples in (("support", seen.support), ("query", seen.query)):
        if not all(np.isfinite(part).all() for part in samples):
            raise ValueError(f"samples of tasks must be finite, but those of a {name} set are not.")
    return seen


def image_samples(seen: Episode) -> Float[np.ndarray, "n ..."]:
    """Return all images of the support sets, one after another."""
    images = np.asarray(seen.support.x)
    if images.ndim not in (4, 5):
        raise ValueError(
            "samples must be images of shape (height, width) or (height, width, channels), but "
            f"got samples of shape {images.shape[2:]}."
        )
    if (largest := np.abs(images).max()) > LARGEST_PIXEL:
        raise ValueError(
            f"images must hold numbers of at most {LARGEST_PIXEL:g}, such as 0 to 1 or 0 to 255, "
            f"but got {largest:g}."
        )
    return images.reshape(-1, *images.shape[2:])


_build = compiled_fully(TaskSource.batch)


# --------------------------------------------------------------------------- standard units


class Scale(eqx.Module):
    """Mean and deviation of inputs and targets."""

    x_mean: Float[Array, " d"]
    x_deviation: Float[Array, " d"]
    y_mean: Float[Array, " t"]
    y_deviation: Float[Array, " t"]

    def __call__(self, samples: Samples) -> Samples:
        """Return the samples in standard units."""
        y = samples.y
        if np.issubdtype(y.dtype, np.floating):
            y = (y - self.y_mean) / self.y_deviation
        return Samples(self.inputs(samples.x), y)

    def inputs(self, x: Any) -> Any:
        """Return inputs in standard units."""
        return (x - self.x_mean) / self.x_deviation


# The moments of what is left in its own units.
UNCHANGED = tuple(np.full(1, value, np.float32) for value in (0.0, 1.0, 0.0, 1.0))


def moments(samples: Samples) -> tuple[np.ndarray, ...]:
    """Return mean and deviation of inputs and of targets; images and class labels keep units."""
    return (*_moments(samples.x), *_moments(samples.y))


def _moments(values: Any) -> tuple[np.ndarray, np.ndarray]:
    values = np.asarray(values)
    if values.ndim != 2 or not np.issubdtype(values.dtype, np.floating):
        return np.zeros(1, np.float32), np.ones(1, np.float32)
    # In double precision, in which squares of large numbers do not overflow.
    mean, deviation = values.mean(axis=0, dtype=float), values.std(axis=0, dtype=float)
    return mean.astype(np.float32), np.where(deviation > 0, deviation, 1.0).astype(np.float32)


class ScaledTasks(eqx.Module):
    """Another distribution of tasks in standard units."""

    tasks: Tasks
    scale: Scale

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> PyTree:
        """Return recipes of the tasks themselves."""
        return draw_recipes(self.tasks, random, n_tasks, split)

    def subjects(self, recipes: PyTree) -> Int[np.ndarray, " n"] | None:
        """Return which of the tasks themselves are about the same thing."""
        return task_subjects(self.tasks, recipes)

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples in standard units."""
        support, query = as_episode(self.tasks.build(recipe))
        return Episode(self.scale(support), self.scale(query))
