"""Where experts start: k-means++ and a few steps of k-means on a part of the data."""

import numpy as np

from .statistics import HostStatistics

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
