"""Tasks in standard units, so that a β and a step size mean the same whatever the data's units."""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PyTree

from .tasks import Episode, Samples, Tasks, as_episode


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
        return self.tasks.draw(random, n_tasks, split)

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples in standard units."""
        support, query = as_episode(self.tasks.build(recipe))
        return Episode(self.scale(support), self.scale(query))
