"""What else could explain the likelihood of a density: fewer or other components, no prices."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.cluster import KMeans
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

from pinfactory import SpecialistMixture

from .sizes import NO_PRICES

LogDensity = Callable[[np.ndarray], np.ndarray]


def fit_density_control(name: str, n_experts: int, seed: int, X: np.ndarray) -> LogDensity:
    """Fit a control of a density with so many experts; return its log-density."""
    if name == K_MEANS:
        return _k_means(n_experts, seed, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of iterations
        return _MODELS[name](n_experts, seed).fit(X).score_samples


def _k_means(n_clusters: int, seed: int, X: np.ndarray) -> LogDensity:
    """Fit one Gaussian to each cluster of k-means."""
    label = KMeans(n_clusters, n_init=1, random_state=seed).fit_predict(X)
    parts = [X[label == m] for m in range(n_clusters)]
    gaussians = [multivariate_normal(part.mean(axis=0), np.cov(part.T)) for part in parts]
    share = np.array([[len(part) / len(X)] for part in parts])
    return lambda x: logsumexp([gaussian.logpdf(x) for gaussian in gaussians], axis=0, b=share)


def _kernels(n_experts: int, seed: int) -> GridSearchCV:
    """Return kernels whose width is chosen by the score of held-out samples."""
    return _Kernels(KernelDensity(rtol=1e-4), {"bandwidth": np.geomspace(0.05, 1.0, 10)})


class _Kernels(GridSearchCV):
    def score_samples(self, X: np.ndarray) -> np.ndarray:
        """Return the log-density of a part of the samples, which is slow for all."""
        return super().score_samples(X[:5000])


K_MEANS = "Gaussians of k-means"
_MODELS: dict[str, Callable[[int, int], Any]] = {
    "one Gaussian": lambda n, seed: GaussianMixture(1, random_state=seed),
    "mixture by EM": lambda n, seed: GaussianMixture(n, random_state=seed),
    "variational mixture": lambda n, seed: BayesianGaussianMixture(
        n_components=n, max_iter=500, random_state=seed
    ),
    "kernels, width held out": _kernels,
    "ours without prices": lambda n, seed: SpecialistMixture(
        n, neglect=False, random_state=seed, **NO_PRICES
    ),
    "ours, β₁ = 1": lambda n, seed: SpecialistMixture(n, random_state=seed),
}
DENSITY_CONTROLS = (*_MODELS, K_MEANS)
