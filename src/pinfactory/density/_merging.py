"""Superfluous experts: two that are worth more as one, or one that the others can replace."""

from typing import NamedTuple

import numpy as np
from scipy.special import multigammaln, xlogy

from ._ascent import Ascent
from ._experts import Prices
from ._statistics import Exact, Statistics, join, to_host, to_single
from ._survey import Survey

# Pairs that are looked at closely, for each expert there is.
PAIRS_PER_EXPERT = 1
# Samples of a pair that a part of all samples has to hold to say anything about it.
FEWEST = 20


class Pairs(NamedTuple):
    """Pairs of experts, what both know, and what merging them would add if they shared no sample.

    Samples that a pair shares lessen the gain.
    """

    a: np.ndarray
    b: np.ndarray
    joint: Exact
    gain: np.ndarray


def likely_pairs(statistics: Exact, prices: Prices) -> Pairs:
    """Return the pairs that may gain most by merging: always the same number of them."""
    asked = np.flatnonzero(statistics.mass)
    a, b = (asked[i] for i in np.triu_indices(len(asked), 1))
    gain = merging_gain(statistics, prices, a, b)
    n_pairs = PAIRS_PER_EXPERT * len(statistics.mass)
    order = np.resize(np.argsort(-gain)[:n_pairs], n_pairs)
    a, b = a[order], b[order]
    return Pairs(a, b, join(_take(statistics, a), _take(statistics, b)), gain[order])


def may_merge(statistics: Exact, pairs: Pairs) -> bool:
    """Return whether a pair may be worth more as one."""
    return bool(pairs.gain.max() + toll_of(float(statistics.mass.sum())) > 0.0)


def merged(
    statistics: Exact, ascent: Ascent, prices: Prices, surveyed: Survey, pairs: Pairs
) -> Statistics | None:
    """Return statistics in which pairs are one expert whose free energy is larger, the best first.

    None if there are no such pairs. Besides its KL(q‖p₀) an expert has to be worth ½ log N nats,
    the description of its share p(m). If the last look was at n < N samples, then what it says is
    an estimate: two of its standard errors are taken off, and it has to show enough of the pair.
    """
    mass = np.asarray(ascent.seen.mass, float)
    total, seen = float(statistics.mass.sum()), float(mass.sum())
    change, squares, joint = (np.asarray(part, float) for part in surveyed[:3])
    # Sums in single precision differ a little.
    complete = seen > 0.999 * total
    variance = np.maximum(squares - change**2 / seen, 0.0) * (0.0 if complete else 1 - seen / total)
    divergence = np.asarray(ascent.divergence, float)
    price = (divergence[pairs.a] + divergence[pairs.b] - joint) / float(prices.beta_expert)
    gain = (change - 2.0 * np.sqrt(variance)) * total / seen + price + toll_of(total)
    gain[(mass[pairs.a] + mass[pairs.b] < FEWEST) & (not complete)] = -np.inf
    free = np.full(len(statistics.mass), True)
    fewer = Exact(*(leaf.copy() for leaf in statistics))
    for best in np.argsort(-gain):
        i, j = pairs.a[best], pairs.b[best]
        # Merging one pair changes what other pairs of the same experts are worth.
        if gain[best] > 0.0 and free[i] and free[j]:
            free[[i, j]] = False
            for leaf, part in zip(fewer, pairs.joint, strict=True):
                leaf[i], leaf[j] = part[best], 0.0
    return None if free.all() else to_single(fewer)


def departed(
    statistics: Exact, ascent: Ascent, prices: Prices, surveyed: Survey
) -> Statistics | None:
    """Return statistics without the expert whose departure raises the free energy most.

    None if none does. The last look has to have been at all the samples.
    """
    total = float(statistics.mass.sum())
    share = np.minimum(statistics.mass / total, 1.0 - 1e-12)
    gain = toll_of(total) + np.asarray(ascent.divergence, float) / float(prices.beta_expert)
    gain += (np.asarray(surveyed.left) - total * np.log1p(-share)) / float(prices.beta_selector)
    worst = int(np.argmax(np.where(share > 0, gain, -np.inf)))
    if gain[worst] <= 0.0:
        return None
    fewer = Exact(*(leaf.copy() for leaf in statistics))
    for leaf in fewer:
        leaf[worst] = 0.0
    return to_single(fewer)


def may_depart(statistics: Exact, ascent: Ascent, prices: Prices) -> bool:
    """Return whether the departure of an expert may raise the free energy at all.

    Every r has −log(1 − r) ≥ 2r − 0.45 h(r), h the entropy of r and 1 − r in nats, which is no more
    than that of p(m|x). Where responsibilities are clear, no closer look is needed.
    """
    mass = np.asarray(ascent.seen.mass, float)
    total, beta = float(statistics.mass.sum()), float(prices.beta_selector)
    asked = statistics.mass > 0
    share = np.minimum(statistics.mass[asked] / total, 1.0 - 1e-12)
    log_weight = np.asarray(ascent.experts.log_weight, float)[asked]
    # The mean of log p(m|x)/p(m) is what the selector pays.
    paid = beta * (float(ascent.utility) - float(ascent.value))
    entropy = max(0.0, -paid - float(mass[asked] @ log_weight))
    gain = toll_of(total) + np.asarray(ascent.divergence, float)[asked] / float(prices.beta_expert)
    gain += (0.45 * entropy - 2.0 * mass[asked] - total * np.log1p(-share)) / beta
    return bool((gain > 0.0).any())


def known_to(ascent: Ascent) -> Exact:
    """Return what the experts learned from, nothing for those whom nobody asks."""
    exact = to_host(ascent.taught)
    exact.mass[np.isneginf(ascent.experts.log_weight)] = 0.0
    return exact


def toll_of(total: float) -> float:
    """Return what the share p(m) of an expert costs: ½ log N nats."""
    return 0.5 * float(np.log(max(total, 1.0)))


def worth(ascent: Ascent) -> float:
    """Return the free energy of all samples, less the tolls of the experts that are asked."""
    mass = np.asarray(ascent.seen.mass, float)
    total = mass.sum()
    return float(ascent.objective) * total - np.count_nonzero(mass) * toll_of(total)


def merging_gain(statistics: Exact, prices: Prices, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return what merging pairs adds to the free energy if they share no sample.

    The best free energy of an expert is the log-evidence of its samples; a joint expert has the
    samples of both. The selector saves (n_a + n_b) H(π)/β₁, π = n_a/(n_a + n_b).
    """
    joint = join(_take(statistics, a), _take(statistics, b))
    both = Exact(*(np.concatenate(parts) for parts in zip(statistics, joint, strict=True)))
    values = _log_evidence(both, prices)
    values += xlogy(both.mass, both.mass) / float(prices.beta_selector)
    alone, together = np.split(values, [len(statistics.mass)])
    return together - alone[a] - alone[b]


def _log_evidence(statistics: Exact, prices: Prices) -> np.ndarray:
    """Return 1/β₂ log ∫ p₀ exp(β₂ Σ log N) but for a term that is linear in the mass."""
    beta, prior = float(prices.beta_expert), prices.prior
    d, df, strength = prior.dim, float(prior.df), float(prior.strength)
    root = np.linalg.inv(np.asarray(prior.scale_cholesky, float))
    inverse = root.T @ root
    n = beta * statistics.mass
    shift = statistics.mean - np.asarray(prior.mean, float)
    pull = (strength * n / (strength + n))[:, None, None]
    matrix = inverse + beta * statistics.scatter + pull * shift[:, :, None] * shift[:, None, :]
    return (
        multigammaln(0.5 * (df + n), d)
        - 0.5 * (df + n) * np.linalg.slogdet(matrix)[1]
        - 0.5 * d * np.log1p(n / strength)
        - multigammaln(0.5 * df, d)
        + 0.5 * df * np.linalg.slogdet(inverse)[1]
    ) / beta


def _take(statistics: Exact, index: np.ndarray | np.integer) -> Exact:
    return Exact(*(leaf[index] for leaf in statistics))
