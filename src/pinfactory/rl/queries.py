"""What is asked of a policy from Python: actions, probabilities, bits; small compiled programs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, ArrayLike, Float

from pinfactory.core.families import Categorical
from pinfactory.core.information import Information, StageMeter, measure

from .policy import HierarchicalAction, Policy, PolicyState
from .state import Visited


@eqx.filter_jit
def act(
    policy: Policy,
    observation: ArrayLike,
    starts: ArrayLike,
    state: PolicyState,
    uniform: ArrayLike,
    deterministic: ArrayLike,
) -> tuple[PolicyState, HierarchicalAction, Array]:
    """Return the policy's state, its decision, and the actions as the environment takes them."""
    state, decision = policy.act(
        jnp.asarray(observation),
        jnp.asarray(starts),
        state,
        jnp.asarray(uniform),
        jnp.asarray(deterministic),
    )
    return state, decision, policy.actions.to_env(decision.action)


@eqx.filter_jit
def responsibilities(policy: Policy, observation: Float[Array, "n o"]) -> Float[Array, "n m"]:
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


def measure_information(policy: Policy, visited: Visited, n_experts: int) -> Information:
    """Return the information that decisions on visited states process, without unused experts."""
    measured = (_measure if int(policy.hold) == 1 else _measure_held)(policy, visited)
    return Information(
        selectors=tuple(map(float, measured.selectors)),
        experts=float(measured.experts),
        overall=float(measured.overall),
        per_expert=np.asarray(measured.per_expert, float)[:n_experts],
        responsibility=np.asarray(measured.responsibility, float)[:n_experts],
        effective_experts=float(measured.effective_experts),
    )


@eqx.filter_jit
def _measure(policy: Policy, visited: Visited) -> Information:
    """Measure a selector that chooses in every state, exactly over experts."""
    return measure(policy.decide(visited.observation))


@eqx.filter_jit
def _measure_held(policy: Policy, visited: Visited) -> Information:
    """Measure a selector that chooses in some states only.

    I(S;M) is that of the states in which it chose, NaN if there is none; I(S;A|M) that of the
    expert that acted in a state, whether or not the selector would choose it there.
    """
    decision = policy.decide(visited.observation)
    (selection,) = decision.selections
    first = jax.tree.map(lambda leaf: leaf[0], (selection, decision.answers))
    selector, experts = map(StageMeter.start, first)
    selector = selector.update(selection, visited.selected.astype(float))
    acted = jax.nn.one_hot(visited.expert, decision.answers.batch_shape[1])
    experts = experts.update(decision.answers, acted)
    bits = jnp.where(experts.share > 0, experts.bits, 0.0)
    return Information(
        selectors=(jnp.where(jnp.any(visited.selected), selector.bits, jnp.nan),),
        experts=jnp.sum(experts.share * bits),
        overall=jnp.asarray(jnp.nan),
        per_expert=bits,
        responsibility=experts.share,
        effective_experts=jnp.exp(Categorical.from_probs(experts.share).entropy()),
    )


def host_uniforms(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return uniform numbers that are neither zero nor one, by NumPy."""
    return random.uniform(2.0**-24, 1.0 - 2.0**-24, shape).astype(np.float32)
