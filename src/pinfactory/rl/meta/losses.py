"""What experts, critics, selector and its critic minimise, and how priors are updated."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.constraints import Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import repeat_answers, take_expert
from pinfactory.rl.optimise import clipped_adam
from pinfactory.rl.policy import take_one
from pinfactory.rl.ppo import clipped_surrogate
from pinfactory.rl.values import Critics, Experience

from .state import MetaAgentState, SelectorReplay


def optimiser_of(plain: bool) -> optax.GradientTransformation:
    """Return the optimiser: Adam, whose gradients are clipped unless the paper's rule is wanted."""
    return clipped_adam(None if plain else 1.0)


def expert_loss(
    parts: tuple[Any, Critics],
    batch: Experience,
    expert: Int[Array, " n"],
    state: MetaAgentState,
    plain: bool,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return minus PPO's gain in free energy plus Huber's loss of the critics; and the nats.

    If `plain`, the gain is that of the paper's policy gradient, log p(a|x,m) · A_m(x, a).
    """
    experts, critics = parts
    hyper, sample = state.hyper, batch.sample
    answer = eqx.filter_vmap(
        lambda own, x: jax.vmap(own)(x), in_axes=(eqx.if_array(0), 1), out_axes=1
    )(take_expert(experts, expert), batch.x)
    log_prob = answer.log_prob(sample.action)
    own = take_expert(state.policy.priors.stages[1].family, expert)
    cost = jnp.mean(jax.vmap(lambda answer: answer.kl(own))(answer))
    errors = optax.huber_loss(critics.of_expert(batch.x, expert), batch.target)
    error = jnp.mean(jnp.sum(errors, axis=-1))
    if plain:  # what information costs is in the advantages, which know what was sampled
        return error - jnp.mean(log_prob * batch.advantage), cost
    unit = 1.0 / (jnp.std(batch.advantage) + 1e-8)
    advantage = unit * (batch.advantage - jnp.mean(batch.advantage))
    gain = clipped_surrogate(log_prob, sample.log_prob, advantage, hyper.clip_range)
    price = (1.0 - hyper.gamma) / state.resources[1].beta
    return error - jnp.mean(gain) + unit * price * cost, cost


def selector_loss(
    parts: tuple[Any, Any],
    batch: SelectorReplay,
    state: MetaAgentState,
    remaining: Float[Array, ""],
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Return minus the selector's free energy, exact over experts, plus Huber's loss of its critic.

    The critic predicts how good every expert would be. A bonus on H(M) that falls to zero keeps
    all experts in use until they have learned to differ. Beside the loss come the critic's error,
    and the nats that the selector processes.
    """
    selector, critic = parts
    hyper, hierarchy = state.hyper, state.policy.hierarchy
    tau = state.policy.transitions(batch.transitions)
    n, n_parts = batch.free_energy.shape
    predicted = jax.vmap(critic)(tau).reshape(n, -1, n_parts)
    observed = take_one(predicted, batch.expert)
    error = jnp.mean(jnp.sum(optax.huber_loss(observed, batch.free_energy), axis=-1))
    hierarchy = eqx.tree_at(lambda h: h.selector, hierarchy, selector)
    selection = jax.vmap(hierarchy.select)(tau)
    prior = state.policy.priors.stages[0].family
    of_experts = jax.lax.stop_gradient(jnp.sum(predicted, axis=-1))
    utility = jnp.sum(selection.probs * of_experts, axis=-1)
    cost = selection.kl(prior)
    use = Categorical.from_probs(jnp.mean(selection.probs, axis=0)).entropy()
    gain = jnp.mean(utility - cost / state.resources[0].beta)
    loss = error - gain - hyper.balance_coef * remaining * use
    return loss, (error, jnp.mean(cost))


def selector_gradient_loss(
    parts: tuple[Any, Any], batch: SelectorReplay, state: MetaAgentState
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Return minus the paper's gain of the selector plus Huber's loss of its critic V(τ).

        log p(m|τ) · [ F̄ − V(τ) − 1/β₁ log p(m|τ)/p(m) ]

    with the bracket held fixed, for the one expert that acted in each task. The aux is that of
    `selector_loss`.
    """
    selector, critic = parts
    tau = state.policy.transitions(batch.transitions)
    value, observed = jax.vmap(critic)(tau)[:, 0], jnp.sum(batch.free_energy, axis=-1)
    hierarchy = eqx.tree_at(lambda h: h.selector, state.policy.hierarchy, selector)
    selection = jax.vmap(hierarchy.select)(tau)
    prior = state.policy.priors.stages[0].family
    log_prob = selection.log_prob(batch.expert)
    ratio = log_prob - prior.log_prob(batch.expert)
    advantage = jax.lax.stop_gradient(observed - value - ratio / state.resources[0].beta)
    error = jnp.mean(optax.huber_loss(value, observed))
    return error - jnp.mean(log_prob * advantage), (error, jnp.mean(selection.kl(prior)))


def update_priors(
    priors: Priors,
    batch: Experience,
    expert: Int[Array, " n"],
    counts: Bool[Array, " n"],
    selection: Categorical,
) -> Priors:
    """Update p(m) by the selector's new answers, and p(a|m) by the experts in tasks that count."""
    selector_prior, expert_prior = priors.stages
    steps = len(batch.advantage)
    capacity = expert_prior.mass.shape[0]
    weight = counts / (steps * jnp.sum(counts))
    acted = jnp.tile(weight[:, None] * jax.nn.one_hot(expert, capacity), (steps, 1))
    given = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch.sample.answer)
    answers = repeat_answers(given, capacity)
    even = jnp.full(len(selection.log_probs), 1.0 / len(selection.log_probs))
    return Priors((selector_prior.update(selection, even), expert_prior.update(answers, acted)))
