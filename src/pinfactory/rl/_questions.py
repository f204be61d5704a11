"""Questions that Python puts to a policy, each a small compiled program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float

from pinfactory.core.information import Information, measure

from ._policy import Choice, Memory, Policy


@eqx.filter_jit
def act(
    policy: Policy,
    observation: ArrayLike,
    fresh: ArrayLike,
    memory: Memory,
    uniform: ArrayLike,
    deterministic: ArrayLike,
) -> tuple[Memory, Choice, Array]:
    """Return memory, decision, and the actions as the environment takes them."""
    memory, choice = policy.act(
        jnp.asarray(observation),
        jnp.asarray(fresh),
        memory,
        jnp.asarray(uniform),
        jnp.asarray(deterministic),
    )
    return memory, choice, policy.actions.to_env(choice.action)


@eqx.filter_jit
def select(policy: Policy, observation: Float[Array, "n o"]) -> Float[Array, "n m"]:
    """Return p(m|x)."""
    return policy.decide(observation).responsibilities


@eqx.filter_jit
def log_density(
    policy: Policy, observation: Float[Array, "n o"], action: Array
) -> Float[Array, " n"]:
    """Return log p(a|x) = log Σ_m p(m|x) p(a|x,m), in the environment's units."""
    decision = policy.decide(observation)
    own = policy.actions.from_env(action)
    log_prob = jax.vmap(lambda answers, a: answers.log_prob(a))(decision.answers, own)
    joint = decision.selections[0].log_probs + log_prob
    return logsumexp(joint, axis=-1) - policy.actions.log_volume(own)


@eqx.filter_jit
def inform(policy: Policy, observation: Float[Array, "n o"]) -> Information:
    """Measure the information that decisions on these states process."""
    return measure(policy.decide(observation))


def uniforms(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return uniform numbers that are neither zero nor one."""
    return random.uniform(2.0**-24, 1.0 - 2.0**-24, shape).astype(np.float32)
