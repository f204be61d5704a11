"""How merging or removing experts would change the free energy, from one pass over samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from .experts import Experts, Hyperparameters, selector_logits, standardised
from .learning import posterior_of
from .statistics import Blocks, Statistics


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


@jax.jit
def merge_effects(
    experts: Experts,
    joint: Statistics,
    hyper: Hyperparameters,
    blocks: Blocks,
    n_blocks: Int[Array | np.int32, ""],
    a: Int[Array | np.ndarray, " pairs"],
    b: Int[Array | np.ndarray, " pairs"],
) -> MergeEffects:
    """Compute the effects on the first blocks, for pairs (a, b) and their joint statistics."""
    posterior = posterior_of(joint, hyper)
    log_weight = jnp.logaddexp(experts.log_weight[a], experts.log_weight[b])
    one = Experts(posterior, log_weight)
    beta = hyper.beta_selector
    tiny = jnp.finfo(log_weight.dtype).tiny

    def add(i: Int[Array, ""], sums: tuple) -> tuple:
        x, weight = blocks.x[i], blocks.weight[i]
        logits = selector_logits(experts, beta, standardised(experts.posterior, x))
        total = logsumexp(logits, axis=0)
        r = jnp.exp(logits - total)
        others = jnp.log(jnp.maximum(1.0 - r[a] - r[b], tiny))
        instead = selector_logits(one, beta, standardised(posterior, x)) - total
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
