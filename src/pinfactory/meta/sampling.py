"""Some training tasks, drawn before learning begins: for shapes, statistics and checks."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from pinfactory.core.compiling import bounded

from .source import TaskSource
from .tasks import Episode, Tasks, draw_recipes

# Statistics of larger numbers overflow in single precision.
LARGEST_PIXEL = 1e6


def sample_tasks(tasks: Any, seed: int, n_tasks: int = 500) -> Episode:
    """Return some training tasks, as host arrays with a leading axis of tasks."""
    if not isinstance(tasks, Tasks):
        raise TypeError(
            "`tasks` must be a distribution of tasks with the methods `draw` and `build`, such "
            f"as ArrayTasks(X, y, ways=2, shots=5), but got {type(tasks).__name__}."
        )
    recipes = draw_recipes(tasks, np.random.default_rng(seed), n_tasks)
    seen = jax.tree.map(np.asarray, _build(TaskSource(tasks), recipes))
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


@bounded
@eqx.filter_jit
def _build(source: TaskSource, recipes: PyTree) -> Episode:
    return source.batch(recipes)
