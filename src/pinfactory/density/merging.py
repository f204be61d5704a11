"""Superfluous experts: pairs with a larger free energy as one, and experts others can replace."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int
from scipy.special import multigammaln, xlogy

from pinfactory.core.compiling import bounded

from . import gaps
from .ascent import Ascent
from .experts import (
    Blocks,
    Experts,
    HostStatistics,
    Hyperparameters,
    Statistics,
    join,
    posterior_of,
    selector_logits,
    to_device,
    to_host,
)

# Pairs whose gain is computed exactly, for each expert there is.
PAIRS_PER_EXPERT = 1
# Samples of a pair that a part of all samples has to hold for an estimate of its gain.
MIN_SAMPLES = 20


class MergeEffects(NamedTuple):
    """What would change if experts were fewer, in nats.

    Attributes
    ----------
    change, squares
        Σ_x δ(x) and Σ_x δ(x)² of every pair: δ is what becomes of 1/β₁ log Σ_m p(m) exp(β₁ E log N)
        if one expert fitted to the samples of both takes the place of the pair.
    divergence
        KL(q‖p₀) of this expert.
    log_remainder
        Σ_x log(1 − p(m|x)) of every expert: what removing it leaves to the others.
    """

    change: Float[Array, " pairs"]
    squares: Float[Array, " pairs"]
    divergence: Float[Array, " pairs"]
    log_remainder: Float[Array, " m"]


def merge_effects(
    experts: Experts,
    hyper: Hyperparameters,
    pairs: "Pairs",
    blocks: Blocks,
    n_blocks: int | np.int32,
) -> MergeEffects:
    """Return what would change on the first blocks if pairs were one expert."""
    a, b = pairs.a.astype(np.int32), pairs.b.astype(np.int32)
    return _effects(experts, to_device(pairs.joint), hyper, blocks, np.int32(n_blocks), a, b)


@bounded
@jax.jit
def _effects(
    experts: Experts,
    joint: Statistics,
    hyper: Hyperparameters,
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
    a: Int[Array | np.ndarray, " pairs"],
    b: Int[Array | np.ndarray, " pairs"],
) -> MergeEffects:
    posterior = posterior_of(joint, hyper)
    log_weight = jnp.logaddexp(experts.log_weight[a], experts.log_weight[b])
    one = Experts(posterior, log_weight)
    beta = hyper.beta_selector
    tiny = jnp.finfo(log_weight.dtype).tiny

    def add(i: Int[Array, ""], sums: tuple) -> tuple:
        weight = blocks.weight[i]
        seen, whole = (gaps.of_block(q, blocks, i) for q in (experts.posterior, posterior))
        logits = selector_logits(experts, beta, seen.z, seen.remainder)
        total = logsumexp(logits, axis=0)
        r = jnp.exp(logits - total)
        others = jnp.log(jnp.maximum(1.0 - r[a] - r[b], tiny))
        instead = selector_logits(one, beta, whole.z, whole.remainder) - total
        change = jnp.logaddexp(others, instead) / beta
        # What is left without the most responsible expert is too small to be 1 − r.
        first = jnp.argmax(logits, axis=0) == jnp.arange(len(logits))[:, None]
        rest = logsumexp(jnp.where(first, -jnp.inf, logits), axis=0)
        log_remainder = jnp.where(first, rest - total, jnp.log1p(-jnp.where(first, 0.0, r)))
        n_seen = change @ weight, change**2 @ weight, log_remainder @ weight
        return jax.tree.map(jnp.add, sums, n_seen)

    nothing = jnp.zeros(a.shape)
    start = nothing, nothing, jnp.zeros_like(experts.log_weight)
    change, squares, log_remainder = jax.lax.fori_loop(0, n_blocks, add, start)
    return MergeEffects(change, squares, posterior.kl(hyper.prior), log_remainder)


class Pairs(NamedTuple):
    """Pairs of experts, their joint statistics, and the gain of merging if they shared no sample.

    Samples that a pair shares lessen the gain.
    """

    a: np.ndarray
    b: np.ndarray
    joint: HostStatistics
    gain: np.ndarray


def best_pairs(statistics: HostStatistics, hyper: Hyperparameters) -> Pairs:
    """Return the pairs that may gain most by merging: always the same number of them."""
    active = np.flatnonzero(statistics.mass)
    a, b = (active[i] for i in np.triu_indices(len(active), 1))
    gain = merging_gain(statistics, hyper, a, b)
    n_pairs = PAIRS_PER_EXPERT * len(statistics.mass)
    order = np.resize(np.argsort(-gain)[:n_pairs], n_pairs)
    a, b = a[order], b[order]
    return Pairs(a, b, join(_take(statistics, a), _take(statistics, b)), gain[order])


def may_merge(statistics: HostStatistics, pairs: Pairs) -> bool:
    """Return whether merging a pair may raise the free energy."""
    return bool(pairs.gain.max() + bic_penalty(float(statistics.mass.sum())) > 0.0)


def merged(
    statistics: HostStatistics,
    ascent: Ascent,
    hyper: Hyperparameters,
    effects: MergeEffects,
    pairs: Pairs,
) -> Statistics | None:
    """Return statistics in which pairs are one expert whose free energy is larger, the best first.

    None if there are no such pairs. Besides its KL(q‖p₀) an expert has to gain ½ log N nats,
    as in Bayes' information criterion for its share p(m). If the last pass was over n < N samples,
    the gain is an estimate: two of its standard errors are taken off, and the samples have to hold
    enough of the pair.
    """
    mass = np.asarray(ascent.statistics.mass, float)
    total, n_seen = float(statistics.mass.sum()), float(mass.sum())
    change, squares, joint = (np.asarray(part, float) for part in effects[:3])
    # Sums in single precision differ a little.
    complete = n_seen > 0.999 * total
    variance = np.maximum(squares - change**2 / n_seen, 0.0) * (
        0.0 if complete else 1 - n_seen / total
    )
    divergence = np.asarray(ascent.divergence, float)
    price = (divergence[pairs.a] + divergence[pairs.b] - joint) / float(hyper.beta_expert)
    gain = (change - 2.0 * np.sqrt(variance)) * total / n_seen + price + bic_penalty(total)
    gain[(mass[pairs.a] + mass[pairs.b] < MIN_SAMPLES) & (not complete)] = -np.inf
    free = np.full(len(statistics.mass), True)
    reduced = HostStatistics(*(leaf.copy() for leaf in statistics))
    for best in np.argsort(-gain):
        i, j = pairs.a[best], pairs.b[best]
        # Merging one pair changes the gain of other pairs of the same experts.
        if gain[best] > 0.0 and free[i] and free[j]:
            free[[i, j]] = False
            for leaf, part in zip(reduced, pairs.joint, strict=True):
                leaf[i], leaf[j] = part[best], 0.0
    return None if free.all() else to_device(reduced)


def removed(
    statistics: HostStatistics,
    ascent: Ascent,
    hyper: Hyperparameters,
    effects: MergeEffects,
) -> Statistics | None:
    """Return statistics without the expert whose removal raises the free energy most.

    None if none does. The last pass has to have been over all the samples.
    """
    total = float(statistics.mass.sum())
    share = np.minimum(statistics.mass / total, 1.0 - 1e-12)
    gain = bic_penalty(total) + np.asarray(ascent.divergence, float) / float(hyper.beta_expert)
    gain += (np.asarray(effects.log_remainder) - total * np.log1p(-share)) / float(
        hyper.beta_selector
    )
    worst = int(np.argmax(np.where(share > 0, gain, -np.inf)))
    if gain[worst] <= 0.0:
        return None
    reduced = HostStatistics(*(leaf.copy() for leaf in statistics))
    for leaf in reduced:
        leaf[worst] = 0.0
    return to_device(reduced)


def may_remove(statistics: HostStatistics, ascent: Ascent, hyper: Hyperparameters) -> bool:
    """Return whether the removal of an expert may raise the free energy at all.

    Every r has −log(1 − r) ≥ 2r − 0.45 h(r), h the entropy of r and 1 − r in nats, which is no more
    than that of p(m|x). Where responsibilities are clear, the exact gain need not be computed.
    """
    mass = np.asarray(ascent.statistics.mass, float)
    total, beta = float(statistics.mass.sum()), float(hyper.beta_selector)
    active = statistics.mass > 0
    share = np.minimum(statistics.mass[active] / total, 1.0 - 1e-12)
    log_weight = np.asarray(ascent.experts.log_weight, float)[active]
    # The sum of log p(m|x)/p(m), the information of the selector.
    information = beta * (float(ascent.utility) - float(ascent.value))
    entropy = max(0.0, -information - float(mass[active] @ log_weight))
    gain = bic_penalty(total) + np.asarray(ascent.divergence, float)[active] / float(
        hyper.beta_expert
    )
    gain += (0.45 * entropy - 2.0 * mass[active] - total * np.log1p(-share)) / beta
    return bool((gain > 0.0).any())


def fitted_statistics(ascent: Ascent) -> HostStatistics:
    """Return what the experts were fitted to, mass zero for those not in use."""
    exact = to_host(ascent.fitted_to)
    exact.mass[np.isneginf(ascent.experts.log_weight)] = 0.0
    return exact


def bic_penalty(total: float) -> float:
    """Return ½ log N nats, the penalty for the share p(m) of an expert."""
    return 0.5 * float(np.log(max(total, 1.0)))


def penalised_objective(ascent: Ascent) -> float:
    """Return the free energy of all samples, less the penalties of the experts in use."""
    mass = np.asarray(ascent.statistics.mass, float)
    total = mass.sum()
    return float(ascent.objective) * total - np.count_nonzero(mass) * bic_penalty(total)


def merging_gain(
    statistics: HostStatistics, hyper: Hyperparameters, a: np.ndarray, b: np.ndarray
) -> np.ndarray:
    """Return what merging pairs adds to the free energy if they share no sample.

    The best free energy of an expert is the log-evidence of its samples; a joint expert has the
    samples of both. The selector saves (n_a + n_b) H(π)/β₁, π = n_a/(n_a + n_b).
    """
    joint = join(_take(statistics, a), _take(statistics, b))
    both = HostStatistics(*(np.concatenate(parts) for parts in zip(statistics, joint, strict=True)))
    values = _log_evidence(both, hyper)
    values += xlogy(both.mass, both.mass) / float(hyper.beta_selector)
    alone, together = np.split(values, [len(statistics.mass)])
    return together - alone[a] - alone[b]


def _log_evidence(statistics: HostStatistics, hyper: Hyperparameters) -> np.ndarray:
    """Return 1/β₂ log ∫ p₀ exp(β₂ Σ log N) but for a term that is linear in the mass."""
    beta, prior = float(hyper.beta_expert), hyper.prior
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


def _take(statistics: HostStatistics, index: np.ndarray | np.integer) -> HostStatistics:
    return HostStatistics(*(leaf[index] for leaf in statistics))
