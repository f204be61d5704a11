"""What experts, critics, selector and its critic minimise, and how priors are updated."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.constraints import Priors
from pinfactory.core.families import Categorical
from pinfactory.rl.critics import Critics
from pinfactory.rl.policy import ActionSample, take_expert
from pinfactory.rl.ppo import clipped_surrogate

from .state import MetaAgentState, SelectorReplay


class ExpertBatch(NamedTuple):
    """What experts learn from: t steps of n tasks."""

    x: Float[Array, "t n o"]
    sample: ActionSample
    advantage: Float[Array, "t n"]
    target: Float[Array, "t n"]


def expert_loss(
    parts: tuple[Any, Critics], batch: ExpertBatch, expert: Int[Array, " n"], state: MetaAgentState
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return minus PPO's gain in free energy plus Huber's loss of the critics; and the nats."""
    experts, critics = parts
    hyper, sample = state.hyper, batch.sample
    answer = eqx.filter_vmap(
        lambda own, x: jax.vmap(own)(x), in_axes=(eqx.if_array(0), 1), out_axes=1
    )(take_expert(experts, expert), batch.x)
    unit = 1.0 / (jnp.std(batch.advantage) + 1e-8)
    advantage = unit * (batch.advantage - jnp.mean(batch.advantage))
    gain = clipped_surrogate(
        answer.log_prob(sample.action), sample.log_prob, advantage, hyper.clip_range
    )
    own = take_expert(state.policy.priors.stages[1].family, expert)
    cost = jnp.mean(jax.vmap(lambda answer: answer.kl(own))(answer))
    price = (1.0 - hyper.gamma) / state.resources[1].beta
    error = jnp.mean(optax.huber_loss(critics.of_expert(batch.x, expert), batch.target))
    return error - jnp.mean(gain) + unit * price * cost, cost


def selector_loss(
    parts: tuple[Any, Any],
    batch: SelectorReplay,
    state: MetaAgentState,
    remaining: Float[Array, ""],
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Return minus the selector's free energy, exact over experts, plus Huber's loss of its critic.

    The critic predicts how good every expert would be. A bonus on H(M) that falls to zero keeps
    all experts in use until they have learned to differ.

    Returns
    -------
    loss
        As above.
    aux
        The critic's error, and the nats that the selector processes.
    """
    selector, critic = parts
    hyper, hierarchy = state.hyper, state.policy.hierarchy
    tau = state.policy.transitions(batch.transitions)
    predicted = jax.vmap(critic)(tau)
    observed = jnp.take_along_axis(predicted, batch.expert[:, None], axis=1)[:, 0]
    error = jnp.mean(optax.huber_loss(observed, batch.free_energy))
    hierarchy = eqx.tree_at(lambda h: h.selector, hierarchy, selector)
    selection = jax.vmap(hierarchy.select)(tau)
    prior = state.policy.priors.stages[0].family
    utility = jnp.sum(selection.probs * jax.lax.stop_gradient(predicted), axis=-1)
    cost = selection.kl(prior)
    use = Categorical.from_probs(jnp.mean(selection.probs, axis=0)).entropy()
    gain = jnp.mean(utility - cost / state.resources[0].beta)
    loss = error - gain - hyper.balance_coef * remaining * use
    return loss, (error, jnp.mean(cost))


def update_priors(
    priors: Priors,
    batch: ExpertBatch,
    expert: Int[Array, " n"],
    counts: Bool[Array, " n"],
    selection: Categorical,
) -> Priors:
    """Update p(m) by the selector's new answers, and p(a|m) by the experts in tasks that count."""
    selector_prior, expert_prior = priors.stages
    steps, n = batch.advantage.shape
    capacity = expert_prior.mass.shape[0]
    weight = counts / (steps * jnp.sum(counts))
    acted = jnp.tile(weight[:, None] * jax.nn.one_hot(expert, capacity), (steps, 1))

    def for_each(leaf: Array) -> Array:
        flat = leaf.reshape(steps * n, 1, *leaf.shape[2:])
        return jnp.broadcast_to(flat, (steps * n, capacity, *leaf.shape[2:]))

    answers = jax.tree.map(for_each, batch.sample.answer)
    even = jnp.full(len(selection.log_probs), 1.0 / len(selection.log_probs))
    return Priors((selector_prior.update(selection, even), expert_prior.update(answers, acted)))
