"""A look at some training tasks before learning begins: for shapes, statistics and checks."""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from .source import TaskSource
from .tasks import Episode, Tasks


def look_at(tasks: Tasks, seed: int, n_tasks: int = 500) -> Episode:
    """Return some training tasks, as host arrays with a leading axis of tasks."""
    recipes = tasks.draw(np.random.default_rng(seed), n_tasks)
    return jax.tree.map(np.asarray, _built(TaskSource(tasks), recipes))


def images_of(seen: Episode) -> Float[np.ndarray, "n h w"]:
    """Return all images of the support sets, one after another."""
    images = np.asarray(seen.support.x)
    if images.ndim != 4:
        raise ValueError(
            "samples must be images with rows and columns, but got samples of shape "
            f"{images.shape[2:]}."
        )
    return images.reshape(-1, *images.shape[2:])


@eqx.filter_jit
def _built(source: TaskSource, recipes: PyTree) -> Episode:
    return source.batch(recipes)
