"""The paper's synthetic tasks (Sections 4.1 and 4.2)."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.model_selection import train_test_split

TASKS = ("moons", "circles", "blobs")
# The paper prints [1, 1] twice; four different corners are meant.
CORNERS = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])
VARIANCE = 0.15


# The committee of Sections 4.1 and 4.2: a network selects, training begins at random and climbs J.
COMMITTEE: dict[str, Any] = {
    "selector": "mlp",
    "start": "random",
    "objective": "free_energy",
    "n_iter_no_change": 20,
}


class Split(NamedTuple):
    """Samples to learn from and samples held out."""

    X: Float[np.ndarray, "n d"]
    X_test: Float[np.ndarray, "k d"]
    y: Int[np.ndarray, " n"]
    y_test: Int[np.ndarray, " k"]


def classification(name: str, n_samples: int, seed: int) -> Split:
    """Return a task with a fifth of the samples held out; the seed decides draw and split."""
    if name == "moons":
        X, y = make_moons(n_samples, noise=0.15, random_state=seed)
    elif name == "circles":
        X, y = make_circles(n_samples, noise=0.1, factor=0.5, random_state=seed)
    else:
        X, corner = make_blobs(n_samples, centers=CORNERS, cluster_std=0.3, random_state=seed)
        y = corner % 2
    return Split(*train_test_split(X, y, test_size=0.2, random_state=seed))


def four_gaussians(n_samples: int, seed: int) -> Float[np.ndarray, "n 2"]:
    """Return samples of the density that the paper's mixtures are fitted to."""
    random = np.random.default_rng(seed)
    centre = CORNERS[random.integers(len(CORNERS), size=n_samples)]
    return random.normal(centre, np.sqrt(VARIANCE))


def plane(X: Float[np.ndarray, "n 2"], resolution: int) -> list[Float[np.ndarray, " k"]]:
    """Return two axes of a grid that reaches a little beyond the samples."""
    low, high = X.min(axis=0), X.max(axis=0)
    room = 0.08 * (high - low)
    return [np.linspace(a, b, resolution) for a, b in zip(low - room, high + room, strict=True)]


def mesh(axes: list[Float[np.ndarray, " k"]]) -> Float[np.ndarray, "kk 2"]:
    """Return the points of a grid, row by row as in an image."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=-1)
