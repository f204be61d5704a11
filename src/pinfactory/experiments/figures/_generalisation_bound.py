"""The PAC-Bayes bound of a committee's weights, and the gap of committees drawn from it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pinfactory.core.compiling import compiled, with_library_settings
from pinfactory.core.generalisation import gaussian_divergence, pac_bayes_gap
from pinfactory.core.hierarchy import Hierarchy

#: Deviations of the weights, of which the one with the best guarantee is taken.
DEVIATIONS = (0.03, 0.1, 0.3, 1.0)
#: 1 − δ of the guarantee, for all deviations together.
CONFIDENCE = 0.95
# Draws of the weights, which all samples share, and new samples that they are judged by.
N_DRAWS, N_NEW = 64, 2_000

Samples = tuple[Float[np.ndarray, "_ d"], Int[np.ndarray, " _"]]


@compiled
def _mean_right(
    key: Key[Array, ""],
    model: Hierarchy,
    deviation: Float[Array, ""],
    x: Float[Array, "n d"],
    y: Int[Array, " n"],
) -> Float[Array, ""]:
    """Return the mean probability of the right label with noise on all weights."""
    weights, rest = eqx.partition(model, eqx.is_inexact_array)
    leaves, shape = jax.tree.flatten(weights)

    def drawn(key: Key[Array, ""]) -> Float[Array, ""]:
        keys = jax.random.split(key, len(leaves))
        noisy = [
            leaf + deviation * jax.random.normal(k, leaf.shape)
            for leaf, k in zip(leaves, keys, strict=True)
        ]
        committee = eqx.combine(jax.tree.unflatten(shape, noisy), rest)
        decision = jax.vmap(committee)(x)
        right = jnp.take_along_axis(decision.answers.probs, y[:, None, None], axis=-1)[..., 0]
        return jnp.mean(jnp.sum(decision.responsibilities * right, axis=-1))

    return jnp.mean(jax.lax.map(drawn, jax.random.split(key, N_DRAWS)))


@with_library_settings
def bound_of_weights(model: Hierarchy, seen: Samples, new: Samples) -> dict[str, float]:
    """Return the bound with the best guarantee for new samples, and the gap it is about.

    Every deviation has its own bound, which holds with 1 − δ/k of k, so that all hold together.
    """
    each, key = 1.0 - (1.0 - CONFIDENCE) / len(DEVIATIONS), jax.random.key(0)

    def right(deviation: float, samples: Samples) -> float:
        x, y = samples
        noise = jnp.asarray(deviation)
        return float(_mean_right(key, model, noise, jnp.asarray(x, float), jnp.asarray(y)))

    found = []
    for deviation in DEVIATIONS:
        divergence = float(gaussian_divergence(model, deviation))
        bound, known = float(pac_bayes_gap(divergence, len(seen[1]), each)), right(deviation, seen)
        found.append((known - bound, known, bound, divergence, deviation))
    _, known, bound, divergence, deviation = max(found)
    gap = known - right(deviation, (new[0][:N_NEW], new[1][:N_NEW]))
    return {"bound": bound, "noisy gap": gap, "divergence": divergence}
