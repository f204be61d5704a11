"""An expert who has to do with two clusters: worth more as two."""

import numpy as np

from ._ascent import Ascent
from ._experts import Prices
from ._merging import merging_gain, toll_of
from ._seeding import hard_statistics, partition
from ._statistics import Exact, Statistics, to_device, to_host

# Partitions that are tried for each expert.
TRIALS = 3


def divided(
    ascent: Ascent,
    prices: Prices,
    x: np.ndarray,
    weight: np.ndarray,
    random: np.random.RandomState,
) -> Statistics | None:
    """Return statistics in which an idle expert has a part of another's samples.

    None if all experts are busy, or no division of some samples (columns) in two promises to raise
    the free energy. What a division in two separate parts gains is what merging them would lose.
    """
    seen = to_host(ascent.seen)
    idle, busy = np.flatnonzero(seen.mass == 0), np.flatnonzero(seen.mass)
    if not len(idle):
        return None
    posterior = ascent.experts.posterior
    roots = np.asarray(posterior.scale_cholesky, float)
    roots *= np.sqrt(np.asarray(posterior.df, float))[:, None, None]
    means = np.asarray(posterior.mean, float)
    z = np.stack([roots[m].T @ (x - means[m][:, None]) for m in busy])
    log_det = np.log(np.diagonal(roots[busy], axis1=1, axis2=2)).sum(axis=1)
    log_weight = np.asarray(ascent.experts.log_weight, float)[busy]
    responsible = np.argmax((log_weight + log_det)[:, None] - 0.5 * (z**2).sum(axis=1), axis=0)

    total = float(seen.mass.sum())
    best_gain, best = toll_of(total), None
    for k, m in enumerate(busy):
        mine = responsible == k
        if mine.sum() < 2:
            continue
        for _ in range(TRIALS):
            label = partition(z[k][:, mine], weight[mine], 2, random)
            halves = hard_statistics(x[:, mine], weight[mine], label, 2)
            if not halves.mass.all():
                continue
            # The samples at hand stand for all that the expert is responsible for.
            factor = seen.mass[m] / halves.mass.sum()
            halves = Exact(factor * halves.mass, halves.mean, factor * halves.scatter)
            gain = -merging_gain(halves, prices, np.array([0]), np.array([1]), total)[0]
            if gain > best_gain:
                best_gain, best = gain, (m, halves)
    if best is None:
        return None
    m, halves = best
    for leaf, (first, second) in zip(seen, halves, strict=True):
        leaf[m], leaf[idle[0]] = first, second
    return to_device(seen)
