"""An expert who has to do with two clusters: worth more as two."""

import numpy as np

from ._experts import Experts, Prices
from ._merging import merging_gain, toll_of
from ._seeding import hard_statistics, partition
from ._statistics import Exact, Statistics, to_single

# Partitions that are tried for each expert.
TRIALS = 3


def divided(
    experts: Experts,
    statistics: Exact,
    prices: Prices,
    x: np.ndarray,
    weight: np.ndarray,
    random: np.random.RandomState,
    *,
    extrapolate: bool,
) -> Statistics | None:
    """Return statistics in which an idle expert has a part of another's samples.

    None if all experts are busy, or no division of some samples in two promises to raise the free
    energy. What a division in two separate parts gains is what merging them would lose.

    Parameters
    ----------
    experts, statistics
        The experts, and what they learned from.
    prices
        The prior and the resources.
    x, weight
        Some samples (columns), and their weights.
    random
        Source of randomness.
    extrapolate
        Whether the samples count as much as all that they stand for when the gain is weighed, or
        only as much as they are.
    """
    idle, busy = np.flatnonzero(statistics.mass == 0), np.flatnonzero(statistics.mass)
    if not len(idle):
        return None
    candidates = _halves(experts, busy, x, weight, random)
    if not candidates:
        return None
    owner = np.array([m for m, _ in candidates])
    halves = Exact(
        *(np.concatenate(leaf) for leaf in zip(*(h for _, h in candidates), strict=True))
    )
    pair = halves.mass.reshape(-1, 2)
    whole = _scaled(halves, np.repeat(statistics.mass[owner] / pair.sum(axis=1), 2))
    first = np.arange(0, len(halves.mass), 2)
    gain = -merging_gain(whole if extrapolate else halves, prices, first, first + 1)
    best = int(np.argmax(gain))
    if gain[best] <= toll_of(float(statistics.mass.sum())):
        return None
    more = Exact(*(leaf.copy() for leaf in statistics))
    for leaf, part in zip(more, whole, strict=True):
        leaf[owner[best]], leaf[idle[0]] = part[2 * best], part[2 * best + 1]
    return to_single(more)


def _halves(
    experts: Experts,
    busy: np.ndarray,
    x: np.ndarray,
    weight: np.ndarray,
    random: np.random.RandomState,
) -> list[tuple[int, Exact]]:
    """Return experts, and the statistics of two parts of their samples; several for each."""
    responsible, z = _responsible(experts, busy, x)
    found = []
    for k, m in enumerate(busy):
        mine = np.flatnonzero(responsible == k)
        for _ in range(TRIALS if len(mine) > 1 else 0):
            label = partition(z[k][:, mine], weight[mine], 2, random)
            if 0 < label.sum() < len(mine):
                found.append((int(m), hard_statistics(x[:, mine], weight[mine], label, 2)))
    return found


def _responsible(
    experts: Experts, busy: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the busy experts explains each sample best, and samples in their eyes."""
    posterior = experts.posterior
    roots = np.asarray(posterior.scale_cholesky, float)
    roots = (roots * np.sqrt(np.asarray(posterior.df, float))[:, None, None])[busy]
    means = np.asarray(posterior.mean, float)[busy]
    z = np.swapaxes(roots, 1, 2) @ (x - means[:, :, None])
    log_det = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    log_weight = np.asarray(experts.log_weight, float)[busy]
    return np.argmax((log_weight + log_det)[:, None] - 0.5 * (z**2).sum(axis=1), axis=0), z


def _scaled(statistics: Exact, factor: np.ndarray) -> Exact:
    scatter = factor[:, None, None] * statistics.scatter
    return Exact(factor * statistics.mass, statistics.mean, scatter)
