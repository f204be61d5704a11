"""k-means, which experts start from and by which one that covers two clusters is split."""

import jax
import numpy as np
from jaxtyping import Bool

from pinfactory.core.compiling import bounded
from pinfactory.core.families import NormalWishart
from pinfactory.core.growth import best_split, parameter_price

from .experts import (
    LEAST_VARIANCE,
    RIDGE,
    Experts,
    HostStatistics,
    Hyperparameters,
    Statistics,
    replaced,
    scale_up,
    to_device,
)
from .gaps import projections
from .merging import merging_gain
from .samples import Whitening

# Partitions that are tried for each expert.
TRIALS = 3
LLOYD_STEPS = 5


def partition(
    points: np.ndarray, weight: np.ndarray, n_clusters: int, random: np.random.RandomState
) -> np.ndarray:
    """Return the cluster of each weighted point (a column); some clusters may be empty."""
    centres = _plus_plus(points, weight, n_clusters, random)
    label = _nearest(points, centres)
    for _ in range(LLOYD_STEPS):
        mass = np.bincount(label, weight, n_clusters)
        kept = mass > 0
        for row, centre in zip(points, centres.T, strict=True):
            centre[kept] = np.bincount(label, weight * row, n_clusters)[kept] / mass[kept]
        before, label = label, _nearest(points, centres)
        if np.array_equal(before, label):
            break
    return label


def _plus_plus(
    points: np.ndarray, weight: np.ndarray, n_clusters: int, random: np.random.RandomState
) -> np.ndarray:
    """Draw centres with probability ∝ squared distance, each the best of several (k-means++)."""
    trials = 2 + int(np.log(n_clusters))
    chosen = np.empty((n_clusters, len(points)), points.dtype)
    nearest = np.ones(points.shape[1], points.dtype)
    for i in range(n_clusters):
        # All points are centres already.
        mass = np.cumsum(weight * nearest) if nearest.any() else np.cumsum(weight)
        index = np.searchsorted(mass, random.uniform(size=trials) * mass[-1])
        trial = points[:, np.minimum(index, points.shape[1] - 1)].T
        distance = sum(
            (row - column[:, None]) ** 2 for row, column in zip(points, trial.T, strict=True)
        )
        closer = distance if i == 0 else np.minimum(distance, nearest)
        best = int(np.argmin(closer @ weight))
        chosen[i], nearest = trial[best], closer[best]
    return chosen


def _nearest(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    half_square = 0.5 * np.sum(centres**2, axis=1)[:, None]
    return np.argmin(half_square - centres @ points, axis=0)


def partition_statistics(
    x: np.ndarray, weight: np.ndarray, label: np.ndarray, m: int
) -> HostStatistics:
    """Return the statistics of m experts that share the samples (columns) as labelled."""
    mass = np.bincount(label, weight, m)
    share = weight / mass[label]
    mean = np.stack([np.bincount(label, share * row, m) for row in x], axis=1)
    scatter = np.zeros((m, len(x), len(x)))
    for i in np.flatnonzero(mass):
        mine = label == i
        part = x[:, mine] - mean[i][:, None]
        scatter[i] = (part * weight[mine]) @ part.T
    return HostStatistics(mass, mean, scatter)


def starts(
    first: tuple[np.ndarray, np.ndarray],
    whitening: Whitening,
    random: np.random.RandomState,
    n_experts: int,
    n_init: int,
) -> HostStatistics:
    """Return the statistics of k-means partitions of the first samples, along the first axis.

    Distances are between standardised features: the whitened coordinates, in which the data as a
    whole are round, would hide long clusters side by side.
    """
    x, weight = first
    points = np.linalg.inv(whitening.transform) @ x
    labels = (partition(points, weight, n_experts, random) for _ in range(n_init))
    parts = [partition_statistics(x, weight, label, n_experts) for label in labels]
    return HostStatistics(*(np.stack(leaves) for leaves in zip(*parts, strict=True)))


def common_prior(starts: HostStatistics, df: float, strength: float | None = None) -> NormalWishart:
    """Return p₀ to start with: centred on the data, with the covariance within clusters.

    An unknown λ₀ is 0.01, or less where that would pull clusters: D / tr(Σ_within⁻¹ Σ_between)
    makes the distance of the clusters from their centre what p₀ expects.
    """
    scatter, mass = starts.scatter.sum(axis=(0, 1)), starts.mass.sum()
    d = len(scatter)
    covariance = scatter / mass
    floor = 10.0 * RIDGE * np.trace(covariance) / d + LEAST_VARIANCE
    precision = np.linalg.inv(covariance + floor * np.eye(d))
    if strength is None:
        spread = np.sum(starts.mass[..., None] * starts.mean * (starts.mean @ precision))
        strength = min(0.01, d / max(spread / mass, 1.0))
    root = np.linalg.cholesky(precision / df)
    parts = (np.zeros(d), root, np.asarray(df), np.asarray(strength))
    return _on_device(*(part.astype(np.float32) for part in parts))


# Several times quicker than `jax.device_put`.
_on_device = bounded(jax.jit(lambda *parts: NormalWishart(*parts)))


def split_expert(
    experts: Experts,
    statistics: HostStatistics,
    hyper: Hyperparameters,
    x: np.ndarray,
    weight: np.ndarray,
    random: np.random.RandomState,
    *,
    extrapolate: bool,
    missing: Bool[np.ndarray, "n d"] | None = None,
) -> Statistics | None:
    """Return statistics in which an unused expert has a part of another's samples.

    None if all experts are in use, or no division of some samples in two is expected to raise the
    free energy. The gain of a division in two separate parts is what merging them would lose.

    Parameters
    ----------
    experts, statistics
        The experts, and what they were fitted to.
    hyper
        The prior and the resources.
    x, weight
        Some samples (columns), and their weights.
    random
        Source of randomness.
    extrapolate
        Whether the samples count as much as all that they stand for when the gain is weighed, or
        only as much as they are.
    missing
        What is missing of each sample, if anything is.
    """
    inactive, active = np.flatnonzero(statistics.mass == 0), np.flatnonzero(statistics.mass)
    if not len(inactive):
        return None
    candidates = _partitions(experts, active, (x, missing), weight, random)
    if not candidates:
        return None
    owner = np.array([m for m, _ in candidates])
    halves = HostStatistics(
        *(np.concatenate(leaf) for leaf in zip(*(h for _, h in candidates), strict=True))
    )
    pair = halves.mass.reshape(-1, 2)
    whole = scale_up(halves, np.repeat(statistics.mass[owner] / pair.sum(axis=1), 2))
    first = np.arange(0, len(halves.mass), 2)
    gain = -merging_gain(whole if extrapolate else halves, hyper, first, first + 1)
    best = best_split(gain, parameter_price(float(statistics.mass.sum())))
    if best is None:
        return None
    parts = HostStatistics(*(leaf[2 * best : 2 * best + 2] for leaf in whole))
    return to_device(replaced(statistics, np.array([owner[best], inactive[0]]), parts))


def _partitions(
    experts: Experts,
    active: np.ndarray,
    samples: tuple[np.ndarray, np.ndarray | None],
    weight: np.ndarray,
    random: np.random.RandomState,
) -> list[tuple[int, HostStatistics]]:
    """Return experts, and the statistics of two parts of their samples; several for each."""
    responsible, z, root, mean = _assignments(experts, active, *samples)
    found = []
    for k, m in enumerate(active):
        mine = np.flatnonzero(responsible == k)
        x, points = samples[0][:, mine], z[k][:, mine]
        if samples[1] is not None:  # with what the expert expects in place of missing values
            x = mean[k][:, None] + np.linalg.solve(root[k].T, points)
        for _ in range(TRIALS if len(mine) > 1 else 0):
            label = partition(points, weight[mine], 2, random)
            if 0 < label.sum() < len(mine):
                found.append((int(m), partition_statistics(x, weight[mine], label, 2)))
    return found


def _assignments(
    experts: Experts, active: np.ndarray, x: np.ndarray, missing: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the expert in use that explains each sample best, and samples standardised by each.

    And the roots of all expected precisions, and the means.
    """
    posterior = experts.posterior
    roots = np.asarray(posterior.scale_cholesky, float)
    roots = (roots * np.sqrt(np.asarray(posterior.df, float))[:, None, None])[active]
    means = np.asarray(posterior.mean, float)[active]
    z = np.swapaxes(roots, 1, 2) @ (x - means[:, :, None])
    log_det = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    score = (np.asarray(experts.log_weight, float)[active] + log_det)[:, None]
    if missing is not None:
        masks, pattern = np.unique(missing, axis=0, return_inverse=True)
        found = projections(posterior, masks)
        matrix, remainder = (np.asarray(part, float)[:, active] for part in found)
        for k in range(len(masks)):
            mine = pattern.ravel() == k
            z[:, :, mine] -= matrix[k] @ z[:, :, mine]
        score = score + remainder[pattern.ravel()].T
    return np.argmax(score - 0.5 * (z**2).sum(axis=1), axis=0), z, roots, means
