"""What one can ask a trained hierarchy about many inputs at once, each compiled once."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.compiling import compiled
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.information import Estimate, Information, Meter, estimate_information

Inputs = Float[Array, "n d"]


@compiled
def select(hierarchy: Hierarchy, x: Inputs) -> Float[Array, "n m"]:
    """Return p(m|x)."""
    return jax.vmap(hierarchy.select)(x).probs


@compiled
def decide(hierarchy: Hierarchy, x: Inputs) -> Decision:
    """Return p(m|x) and the answers of all experts."""
    return jax.vmap(hierarchy)(x)


@compiled
def ask_best(hierarchy: Hierarchy, x: Inputs) -> PyTree[Array]:
    """Return the answer of the most responsible expert; the others are not asked."""

    def one(x: Array) -> PyTree[Array]:
        chosen = jnp.argmax(hierarchy.select(x).log_probs)
        return hierarchy.expert(chosen)(x)

    return jax.vmap(one)(x)


@compiled
def ask_sampled(hierarchy: Hierarchy, x: Inputs, key: Key[Array, ""]) -> PyTree[Array]:
    """Return the answer of an expert drawn from p(m|x) for each input."""

    def one(x: Array, key: Array) -> PyTree[Array]:
        return hierarchy.expert(hierarchy.select(x).sample(key))(x)

    return jax.vmap(one)(x, jax.random.split(key, len(x)))


@compiled
def ask_expert(hierarchy: Hierarchy, x: Inputs, m: Int[Array, ""]) -> PyTree[Array]:
    """Return the answers of expert m."""
    return jax.vmap(hierarchy.expert(m))(x)


@compiled
def feed_meter(
    meter: Meter | None, hierarchy: Hierarchy, x: Inputs, weight: Float[Array, " n"]
) -> Meter:
    """Measure the decisions for further inputs, or begin to."""
    decision = jax.vmap(hierarchy)(x)
    return (Meter.start(decision) if meter is None else meter).update(decision, weight)


@compiled
def read_meter(meter: Meter) -> Information:
    """Return what has been measured."""
    return meter.report()


@compiled
def estimate_overall(hierarchy: Hierarchy, x: Inputs) -> Estimate:
    """Estimate I(X;Y) for answers whose mixture has no closed-form entropy."""
    return estimate_information(jax.random.key(0), jax.vmap(hierarchy)(x))[1]
