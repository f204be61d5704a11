"""Superfluous experts: pairs with a larger free energy as one."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int
from scipy.special import multigammaln, xlogy

from pinfactory.core.compiling import bounded
from pinfactory.core.growth import BEYOND_NOISE, best_merges, parameter_price

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
    replaced,
    scale_up,
    selector_logits,
    to_device,
    to_host,
)

# Samples of a pair that a part of all samples has to hold for an estimate of its gain.
MIN_SAMPLES = 20


class MergeEffects(NamedTuple):
    """What would change if experts were fewer, in nats."""

    # Σ_x δ(x) and Σ_x δ(x)² of every pair: δ is what becomes of 1/β₁ log Σ_m p(m) exp(β₁ E log N)
    # if one expert fitted to the samples of both takes the place of the pair.
    change: Float[Array, " pairs"]
    squares: Float[Array, " pairs"]
    divergence: Float[Array, " pairs"]  # KL(q‖p₀) of this expert


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
        return sums[0] + change @ weight, sums[1] + change**2 @ weight

    start = jnp.zeros(a.shape), jnp.zeros(a.shape)
    change, squares = jax.lax.fori_loop(0, n_blocks, add, start)
    return MergeEffects(change, squares, posterior.kl(hyper.prior))


class Pairs(NamedTuple):
    """Pairs of experts, their joint statistics, and the gain of merging if they shared no sample.

    Samples that a pair shares lessen the gain.
    """

    a: np.ndarray
    b: np.ndarray
    joint: HostStatistics
    gain: np.ndarray


def best_pairs(statistics: HostStatistics, hyper: Hyperparameters) -> Pairs:
    """Return the pairs that may gain most by merging: as many as there are places for experts."""
    active = np.flatnonzero(statistics.mass)
    a, b = (active[i] for i in np.triu_indices(len(active), 1))
    gain = merging_gain(statistics, hyper, a, b)
    n_pairs = len(statistics.mass)
    order = np.resize(np.argsort(-gain)[:n_pairs], n_pairs)
    a, b = a[order], b[order]
    return Pairs(a, b, join(_take(statistics, a), _take(statistics, b)), gain[order])


def may_merge(statistics: HostStatistics, pairs: Pairs) -> bool:
    """Return whether merging a pair may raise the free energy."""
    return bool(pairs.gain.max() + parameter_price(float(statistics.mass.sum())) > 0.0)


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
    the gain is an estimate: it has to be beyond noise, and the samples have to hold enough of the
    pair.
    """
    mass = np.asarray(ascent.statistics.mass, float)
    total, n_seen = float(statistics.mass.sum()), float(mass.sum())
    change, squares, joint = (np.asarray(part, float) for part in effects)
    # Sums in single precision differ a little.
    complete = n_seen > 0.999 * total
    variance = np.maximum(squares - change**2 / n_seen, 0.0) * (
        0.0 if complete else 1 - n_seen / total
    )
    divergence = np.asarray(ascent.divergence, float)
    price = (divergence[pairs.a] + divergence[pairs.b] - joint) / float(hyper.beta_expert)
    certain = (change - BEYOND_NOISE * np.sqrt(variance)) * total / n_seen
    gain = certain + price + parameter_price(total)
    gain[(mass[pairs.a] + mass[pairs.b] < MIN_SAMPLES) & (not complete)] = -np.inf
    chosen = best_merges(gain, pairs.a, pairs.b)
    if not chosen:
        return None
    joined = _take(pairs.joint, np.array(chosen))
    nothing = scale_up(joined, np.zeros(len(chosen)))
    fewer = replaced(statistics, pairs.a[chosen], joined)
    return to_device(replaced(fewer, pairs.b[chosen], nothing))


def fitted_statistics(ascent: Ascent) -> HostStatistics:
    """Return what the experts were fitted to, mass zero for those not in use."""
    exact = to_host(ascent.fitted_to)
    exact.mass[np.isneginf(ascent.experts.log_weight)] = 0.0
    return exact


def penalised_objective(ascent: Ascent) -> float:
    """Return the free energy of all samples, less the penalties of the experts in use."""
    mass = np.asarray(ascent.statistics.mass, float)
    total = mass.sum()
    return float(ascent.objective) * total - np.count_nonzero(mass) * parameter_price(total)


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


def _take(statistics: HostStatistics, index: np.ndarray) -> HostStatistics:
    return HostStatistics(*(leaf[index] for leaf in statistics))
