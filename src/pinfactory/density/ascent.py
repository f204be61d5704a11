"""Coordinate ascent on the free energy in closed form, over blocks of samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from pinfactory.core.compiling import bounded, even_batch
from pinfactory.core.families import NormalWishart
from pinfactory.core.growth import by_share
from pinfactory.core.hierarchy import take_expert

from . import gaps
from .experts import (
    Blocks,
    Experts,
    Hyperparameters,
    Statistics,
    fit_experts,
    fit_prior,
    inverse,
    mean_precision_root,
    selector_logits,
    utility,
)

# Numbers an expert computes from a block (M × D × N) that the processor's cache holds at once.
CACHE_SIZE = 32768
# The objective before the first iteration.
NOTHING = np.float32(-np.inf)


class Expectation(NamedTuple):
    """What one pass over all samples gives."""

    statistics: Statistics  # the statistics of every expert, weighted by its responsibilities
    # Σ_x Σ_m p(m|x) E log N, in nats; with missing values log ∫ exp(E log N) over them.
    utility: Float[Array, ""]
    value: Float[Array, ""]  # Σ_x Σ_m p(m|x)[E log N − 1/β₁ log p(m|x)/p(m)], in nats


class Sums(NamedTuple):
    """Sums over samples, weighted by responsibilities: those of parts of the data add up.

    They are taken in each expert's own coordinates, in which its samples have mean 0 and
    covariance 1: single precision then suffices for clusters of any size at any place. `entropy`
    is that of missing values, in nats.
    """

    mass: Float[Array, " m"]
    first: Float[Array, "m d"]
    second: Float[Array, "m d d"]
    value: Float[Array, ""]
    entropy: Float[Array, ""]


def responsibility_sums(
    experts: Experts,
    beta_selector: Float[Array | np.float32, ""],
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
) -> Sums:
    """Compute responsibilities in the first blocks, and the sums weighted by them."""
    m, d = experts.posterior.mean.shape

    def add(i: Int[Array, ""], sums: Sums) -> Sums:
        mass, first, second, value, entropy = sums
        z, remainder, found = gaps.of_block(experts.posterior, blocks, i)
        weight = blocks.weight[i]
        logits = selector_logits(experts, beta_selector, z, remainder)
        total = logsumexp(logits, axis=0)
        responsibility = jnp.exp(logits - total) * weight
        weighted = responsibility[:, None] * z
        spread, uncertain = gaps.spread(blocks.gaps, i, found, responsibility)
        return Sums(
            mass + jnp.sum(responsibility, axis=1),
            first + jnp.sum(weighted, axis=2),
            second + jnp.einsum("min,mjn->mij", weighted, z) + spread,
            value + jnp.sum(weight * total) / beta_selector,
            entropy + uncertain,
        )

    zero = Sums(*map(jnp.zeros, ((m,), (m, d), (m, d, d), (), ())))
    return jax.lax.fori_loop(0, n_blocks, add, zero)


def expectation(experts: Experts, sums: Sums) -> Expectation:
    """Return what sums over all samples say, in the coordinates of the samples."""
    mass, first, second, value, entropy = sums
    m, d = first.shape
    mean = first / jnp.maximum(mass, 1e-30)[:, None]
    scatter = second - mass[:, None, None] * mean[:, :, None] * mean[:, None, :]
    back = jnp.swapaxes(inverse(mean_precision_root(experts.posterior)), -1, -2)
    mean = experts.posterior.mean + jnp.einsum("mij,mj->mi", back, mean)
    statistics = Statistics(mass, mean, back @ scatter @ jnp.swapaxes(back, -1, -2))
    # ‖z‖² summed over samples is the trace of the second moments.
    peak = utility(experts.posterior, jnp.zeros((m, d, 1)))[:, 0]
    total_utility = mass @ peak - 0.5 * jnp.sum(jnp.trace(second, axis1=1, axis2=2)) + entropy
    return Expectation(statistics, total_utility, value)


@bounded
@jax.jit
def conditional_entropy(
    experts: Experts,
    beta_selector: Float[Array | np.float32, ""],
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
) -> Float[Array, ""]:
    """Return H(M|X) of the first blocks in nats, from the responsibilities themselves.

    Σ_x Σ_m p(m|x) log p(m|x) as a difference of utility and value would lose all digits where β₁
    is large.
    """

    def add(i: Int[Array, ""], sums: tuple) -> tuple:
        z, remainder, _ = gaps.of_block(experts.posterior, blocks, i)
        logits = selector_logits(experts, beta_selector, z, remainder)
        log_r = logits - logsumexp(logits, axis=0)
        r = jnp.exp(log_r)
        entropy = -jnp.sum(jnp.where(r > 0.0, r * log_r, 0.0), axis=0)
        return sums[0] + blocks.weight[i] @ entropy, sums[1] + jnp.sum(blocks.weight[i])

    entropy, total = jax.lax.fori_loop(0, n_blocks, add, (jnp.zeros(()), jnp.zeros(())))
    return entropy / total


class Ascent(NamedTuple):
    """Experts, the statistics they were fitted to, and those that follow from them."""

    experts: Experts
    fitted_to: Statistics  # the statistics that `experts` were fitted to
    statistics: Statistics  # statistics of all samples with the responsibilities that follow
    # As in `Expectation`, of all samples.
    utility: Float[Array | np.ndarray | np.float32, ""]
    value: Float[Array | np.ndarray | np.float32, ""]
    prior: NormalWishart  # the best p₀ for these experts
    # KL(q_m‖p₀) of every expert, in nats; zero if it is not in use.
    divergence: Float[Array | np.ndarray, " m"]
    objective: Float[Array | np.ndarray | np.float32, ""]  # J, in nats per sample
    change: Float[Array | np.ndarray | np.float32, ""]  # what the last iteration added to it
    n_iter: Int[Array | np.ndarray, ""]

    @classmethod
    def start(
        cls,
        statistics: Statistics,
        prior: NormalWishart,
        objective: Float[Array | np.float32, ""] = NOTHING,
    ) -> "Ascent":
        """Return an ascent that has begun nowhere, with statistics to fit experts to."""
        m = statistics.mass.shape
        like = jax.tree.map(lambda leaf: np.zeros(m + leaf.shape, np.float32), prior)
        zero, zeros = np.zeros((), np.float32), np.zeros(m, np.float32)
        seen = (statistics, statistics, zero, zero, prior, zeros)
        change, n_iter = np.full((), np.inf, np.float32), np.zeros((), np.int32)
        return cls(Experts(like, zeros), *seen, objective, change, n_iter)

    def ordered(self) -> "Ascent":
        """Return it with the busiest expert first, and those that are not in use last."""
        used = ~np.isneginf(np.asarray(self.experts.log_weight))
        order = by_share(np.asarray(self.statistics.mass, float), used)
        of_experts = self.experts, self.fitted_to, self.statistics, self.divergence
        names = "experts", "fitted_to", "statistics", "divergence"
        return self._replace(**dict(zip(names, _take(of_experts, order), strict=True)))


# One program: array by array a first fit would compile one for every shape.
_take = bounded(jax.jit(take_expert))


def iterated(
    ascent: Ascent,
    experts: Experts,
    sums: Sums,
    hyper: Hyperparameters,
    total: Float[Array | np.float32, ""],
) -> Ascent:
    """Return an ascent after an iteration that gave experts, and sums over samples of a weight."""
    active = experts.log_weight > -jnp.inf
    prior = fit_prior(experts, ascent.prior)
    divergence = jnp.where(active, experts.posterior.kl(prior), 0.0)
    statistics, utility, value = expectation(experts, sums)
    objective = (value - jnp.sum(divergence) / hyper.beta_expert) / total
    return Ascent(
        experts,
        ascent.statistics,
        statistics,
        utility,
        value,
        prior,
        divergence,
        objective,
        objective - ascent.objective,
        ascent.n_iter + 1,
    )


@bounded
@jax.jit
def ascend(
    statistics: Statistics,
    objective: Float[Array | np.float32, ""],
    hyper: Hyperparameters,
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
    tol: Float[Array | np.float32, ""],
    max_iter: Int[Array | np.int32, ""],
) -> Ascent:
    """Alternate experts, their prior and the selector until the objective rises by less than `tol`.

    Its sum over all samples is

        N·J = Σ_x Σ_m p(m|x)[E log N − 1/β₁ log p(m|x)/p(m)] − Σ_m KL(q_m‖p₀)/β₂,

    with β₁ = β₂ = 1 the variational lower bound of the log-evidence.

    Parameters
    ----------
    statistics
        What the experts are fitted to first.
    objective
        The objective so far; −∞ at the start.
    hyper
        The resources, and the prior to start with.
    blocks, n_blocks
        The samples, and how many of the blocks to use.
    tol, max_iter
        When to stop.
    """
    used = jnp.arange(len(blocks.x)) < n_blocks
    total = jnp.sum(jnp.where(used, jnp.sum(blocks.weight, axis=1), 0.0))

    def step(ascent: Ascent) -> Ascent:
        experts = fit_experts(ascent.statistics, hyper.with_prior(ascent.prior))
        sums = responsibility_sums(experts, hyper.beta_selector, blocks, n_blocks)
        return iterated(ascent, experts, sums, hyper, total)

    def not_converged(ascent: Ascent) -> Array:
        # In exact arithmetic the objective never falls: if it does, the rest is rounding.
        return jnp.logical_and(ascent.n_iter < max_iter, ascent.change >= tol)

    start = Ascent.start(statistics, hyper.prior, objective)
    return jax.lax.while_loop(not_converged, step, start)


@bounded
@jax.jit
def ascend_best(
    starts: Statistics,
    hyper: Hyperparameters,
    blocks: Blocks,
    tol: Float[Array | np.float32, ""],
    max_iter: Int[Array | np.int32, ""],
) -> tuple[Ascent, Int[Array, ""]]:
    """Ascend on the first block from many starts (along the first axis).

    Starts run side by side as long as the cache holds them all: beyond that, waiting for the
    slowest one and for memory would take longer than one after another.

    Returns
    -------
    best, n_iter
        The ascent that came highest, and the iterations of all.
    """
    n_starts, m, d = starts.mean.shape
    together = even_batch(n_starts, CACHE_SIZE // (m * d * blocks.x.shape[-1]))

    def ascend_one(start: Statistics) -> Ascent:
        return ascend(start, NOTHING, hyper, blocks, np.int32(1), tol, max_iter)

    ascents = jax.lax.map(ascend_one, starts, batch_size=together if together > 1 else None)
    best = jax.tree.map(lambda leaf: leaf[jnp.argmax(ascents.objective)], ascents)
    return best, jnp.sum(ascents.n_iter)
