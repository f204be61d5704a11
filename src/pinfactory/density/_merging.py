"""Superfluous experts: two that are worth more as one, or one that the others can replace."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, xlogy
from jaxtyping import Array, Float, Int
from scipy.special import multigammaln
from scipy.special import xlogy as numpy_xlogy

from ._ascent import Ascent
from ._experts import Experts, Prices, selector_logits, whitened
from ._statistics import Blocks, Exact, Statistics, join, to_device, to_host

# Pairs that are looked at closely, for each expert there is.
PAIRS_PER_EXPERT = 2


class Survey(NamedTuple):
    """What a look at all samples says about experts and pairs of them, in nats.

    Attributes
    ----------
    single, pair
        Σ_x r log r of every expert, r = p(m|x), and of the joint responsibility of pairs.
    left
        Σ_x log(1 − r) of every expert: what its departure leaves to the others.
    """

    single: Float[Array, " m"]
    pair: Float[Array, " pairs"]
    left: Float[Array, " m"]


@jax.jit
def survey(
    experts: Experts,
    beta_selector: Float[Array | np.float32, ""],
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
    a: Int[Array | np.ndarray, " pairs"],
    b: Int[Array | np.ndarray, " pairs"],
) -> Survey:
    """Take the survey over the first blocks, for the pairs (a, b) of experts."""

    def add(i: Int[Array, ""], sums: Survey) -> Survey:
        x, weight = blocks.x[i], blocks.weight[i]
        logits = selector_logits(experts, beta_selector, whitened(experts.posterior, x))
        total = logsumexp(logits, axis=0)
        r = jnp.exp(logits - total)
        joint = r[a] + r[b]
        # What is left without the most responsible expert is too small to be 1 − r.
        first = jnp.argmax(logits, axis=0) == jnp.arange(len(logits))[:, None]
        others = logsumexp(jnp.where(first, -jnp.inf, logits), axis=0)
        left = jnp.where(first, others - total, jnp.log1p(-jnp.where(first, 0.0, r)))
        seen = Survey(
            xlogy(r, r) @ weight,
            xlogy(joint, joint) @ weight,
            left @ weight,
        )
        return jax.tree.map(jnp.add, sums, seen)

    nothing = jnp.zeros_like(experts.log_weight)
    start = Survey(nothing, jnp.zeros(a.shape), nothing)
    return jax.lax.fori_loop(0, n_blocks, add, start)


class Pairs(NamedTuple):
    """Pairs of experts, and what merging them adds to the free energy if they share no sample."""

    a: np.ndarray
    b: np.ndarray
    gain: np.ndarray


def likely_pairs(statistics: Statistics, prices: Prices) -> Pairs:
    """Return the pairs that may gain most by merging: always the same number of them.

    Samples that a pair shares can only lessen the gain.
    """
    exact = to_host(statistics)
    asked = np.flatnonzero(exact.mass)
    a, b = (asked[i] for i in np.triu_indices(len(asked), 1))
    gain = merging_gain(exact, prices, a, b, exact.mass.sum())
    n_pairs = PAIRS_PER_EXPERT * len(exact.mass)
    order = np.resize(np.argsort(-gain)[:n_pairs], n_pairs)
    return Pairs(a[order], b[order], gain[order])


def without_superfluous(
    ascent: Ascent, prices: Prices, surveyed: Survey, pairs: Pairs
) -> Statistics | None:
    """Return what fewer experts see whose free energy is larger; None if there are no such.

    Besides its KL(q‖p₀) an expert has to be worth ½ log N nats, the description of its share p(m).
    Merges are tried first, the best ones first, then the departure of one expert.
    """
    seen = to_host(ascent.seen)
    total = float(seen.mass.sum())
    toll = toll_of(total)
    a, b, gain = pairs
    single, pair, left = (np.asarray(part, float) for part in surveyed)
    beta_selector, beta_expert = float(prices.beta_selector), float(prices.beta_expert)
    gain = gain + toll + (single[a] + single[b] - pair) / beta_selector
    free = np.full(len(seen.mass), True)
    for best in np.argsort(-gain):
        i, j = a[best], b[best]
        # Merging one pair changes what other pairs of the same experts are worth.
        if gain[best] > 0.0 and free[i] and free[j]:
            free[[i, j]] = False
            for leaf, joint in zip(seen, join(_take(seen, i), _take(seen, j)), strict=True):
                leaf[i], leaf[j] = joint, 0.0
    if free.all():
        share = np.minimum(seen.mass / total, 1.0 - 1e-12)
        gain = toll + np.asarray(ascent.divergence, float) / beta_expert
        gain += (left - total * np.log1p(-share)) / beta_selector
        worst = int(np.argmax(np.where(share > 0, gain, -np.inf)))
        if gain[worst] <= 0.0:
            return None
        for leaf in seen:
            leaf[worst] = 0.0
    return to_device(seen)


def toll_of(total: float) -> float:
    """Return what the share p(m) of an expert costs: ½ log N nats."""
    return 0.5 * float(np.log(max(total, 1.0)))


def worth(ascent: Ascent) -> float:
    """Return the free energy of all samples, less the tolls of the experts that are asked."""
    mass = np.asarray(ascent.seen.mass, float)
    total = mass.sum()
    return float(ascent.objective) * total - np.count_nonzero(mass) * toll_of(total)


def merging_gain(
    statistics: Exact, prices: Prices, a: np.ndarray, b: np.ndarray, total: float
) -> np.ndarray:
    """Return what merging pairs adds to the free energy of `total` samples if they share none.

    The best free energy of an expert is the log-evidence of its samples; a joint expert has the
    samples of both.
    """

    def value(part: Exact) -> np.ndarray:
        chosen = numpy_xlogy(part.mass, part.mass / total) / float(prices.beta_selector)
        return _log_evidence(part, prices) + chosen

    joint = join(_take(statistics, a), _take(statistics, b))
    values = value(Exact(*(np.concatenate(both) for both in zip(statistics, joint, strict=True))))
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
