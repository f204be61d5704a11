"""Samples whose density is estimated, and who estimates it."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine, make_blobs
from sklearn.decomposition import PCA
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

from pinfactory import SpecialistMixture
from pinfactory.experiments.synthetic_data import four_gaussians


def _anisotropic(seed: int) -> np.ndarray:
    """Return three long clusters side by side."""
    blobs, _ = make_blobs(1000, centers=3, random_state=170 + seed)
    return blobs @ np.array([[0.6, -0.6], [-0.4, 0.8]])


def _unequal(seed: int) -> np.ndarray:
    """Return a wide cluster of 700, a narrow one of 250 and a flat one of 50."""
    random = np.random.default_rng(seed)
    wide = random.normal(0, 2.5, (700, 2))
    narrow, flat = random.normal([8, 0], 0.5, (250, 2)), random.normal([0, 9], [1, 0.2], (50, 2))
    return np.vstack([wide, narrow, flat])


def sixteen_gaussians(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return training and held-out samples of 16 overlapping flat Gaussians in 8 dimensions."""
    random = np.random.default_rng(seed)
    means = random.normal(0, 3, (16, 8))
    roots = random.normal(0, 0.5, (16, 8, 8)) + np.eye(8)
    label = random.integers(16, size=n + 20_000)
    X = random.normal(size=(n + 20_000, 8))
    for m in range(16):
        X[label == m] = means[m] + X[label == m] @ roots[m]
    return X[:n], X[n:]


# Samples by seed, and the number of components.
SETS: Mapping[str, tuple[Callable[[int], np.ndarray], int]] = {
    "iris": (lambda seed: load_iris().data, 3),
    "wine": (lambda seed: load_wine().data, 3),
    "breast cancer": (lambda seed: load_breast_cancer().data, 2),
    "digits (10 PCA)": (lambda seed: PCA(10).fit_transform(load_digits().data), 10),
    "anisotropic": (_anisotropic, 3),
    "unequal": (_unequal, 3),
    "flat (8 dimensions)": (lambda seed: sixteen_gaussians(1024, seed)[0], 16),
    "four gaussians": (lambda seed: four_gaussians(1000, seed), 4),
}

OURS, THEIRS = "SpecialistMixture", "GaussianMixture"
MODELS: Mapping[str, Callable[[int, int], Any]] = {
    OURS: lambda n, seed: SpecialistMixture(n, random_state=seed),
    f"{OURS} (n_init=4)": lambda n, seed: SpecialistMixture(n, n_init=4, random_state=seed),
    THEIRS: lambda n, seed: GaussianMixture(n, random_state=seed),
    f"{THEIRS} (n_init=4)": lambda n, seed: GaussianMixture(n, n_init=4, random_state=seed),
    "BayesianGaussianMixture": lambda n, seed: BayesianGaussianMixture(
        n_components=n, random_state=seed, max_iter=500
    ),
}
