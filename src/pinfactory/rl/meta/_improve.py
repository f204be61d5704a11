"""How experts, critics, selector and judge learn from what happened."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.priors import Priors
from pinfactory.rl._mind import OPTIMISER, Critics
from pinfactory.rl._update import clipped_gain

from ._mind import MetaMind, Trials
from ._policy import Deed, of


class Lessons(NamedTuple):
    """What experts learn from: t steps of n tasks."""

    x: Float[Array, "t n o"]
    deed: Deed
    advantage: Float[Array, "t n"]
    target: Float[Array, "t n"]


def descend(
    loss: Any,
    parts: tuple[PyTree, ...],
    optimisers: tuple[optax.OptState, ...],
    rates: tuple[Array, ...],
    batches: PyTree[Int[Array, "steps ..."]],
) -> tuple[tuple[PyTree, ...], tuple[optax.OptState, ...], Float[Array, " steps"]]:
    """Take one gradient step for every batch, each part with an optimiser of its own."""
    arrays, static = eqx.partition(parts, eqx.is_inexact_array)

    def step(carry: Any, batch: PyTree) -> tuple[Any, Array]:
        arrays, optimisers = carry
        gradients, note = eqx.filter_grad(
            lambda a: loss(eqx.combine(a, static), batch), has_aux=True
        )(arrays)
        moves = [
            OPTIMISER.update(gradient, optimiser)
            for gradient, optimiser in zip(gradients, optimisers, strict=True)
        ]
        arrays = tuple(
            jax.tree.map(lambda w, d, rate=rate: w - rate * d, part, direction)
            for part, (direction, _), rate in zip(arrays, moves, rates, strict=True)
        )
        return (arrays, tuple(optimiser for _, optimiser in moves)), note

    (arrays, optimisers), notes = jax.lax.scan(step, (arrays, optimisers), batches)
    return eqx.combine(arrays, static), optimisers, notes


def expert_loss(
    parts: tuple[Any, Critics], now: Lessons, expert: Int[Array, " n"], mind: MetaMind
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return minus PPO's gain in free energy, plus Huber's loss of the critics; and the cost."""
    experts, critics = parts
    hyper = mind.hyper
    answer = eqx.filter_vmap(
        lambda own, x: jax.vmap(own)(x), in_axes=(eqx.if_array(0), 1), out_axes=1
    )(of(experts, expert), now.x)
    spread = 1.0 / (jnp.std(now.advantage) + 1e-8)
    advantage = spread * (now.advantage - jnp.mean(now.advantage))
    gain = clipped_gain(answer.log_prob(now.deed.action), now.deed.log_prob, advantage, hyper.clip)
    own = of(mind.policy.priors.stages[1].family, expert)
    cost = jnp.mean(jax.vmap(lambda answer: answer.kl(own))(answer))
    price = (1.0 - hyper.gamma) / hyper.beta_expert
    error = jnp.mean(optax.huber_loss(values(critics, now.x, expert), now.target))
    return error - jnp.mean(gain) + spread * price * cost, cost


def selector_loss(
    parts: tuple[Any, Any], now: Trials, mind: MetaMind, left: Float[Array, ""]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return minus the selector's free energy, exact over experts, plus Huber's loss of the judge.

    The judge says how good every expert would be. A fading bonus on H(M) keeps all experts in use
    until they have something to be good at.
    """
    selector, judge = parts
    hyper, hierarchy = mind.hyper, mind.policy.hierarchy
    tau = mind.policy.transitions(now.transitions)
    judged = jax.vmap(judge)(tau)
    seen = jnp.take_along_axis(judged, now.expert[:, None], axis=1)[:, 0]
    error = jnp.mean(optax.huber_loss(seen, now.free_energy))
    hierarchy = eqx.tree_at(lambda h: h.selector, hierarchy, selector)
    selection = jax.vmap(hierarchy.select)(tau)
    prior = mind.policy.priors.stages[0].family
    worth = jnp.sum(selection.probs * jax.lax.stop_gradient(judged), axis=-1)
    paid = selection.kl(prior) / hyper.beta_selector
    use = Categorical.from_probs(jnp.mean(selection.probs, axis=0)).entropy()
    return error - jnp.mean(worth - paid) - hyper.balance * left * use, error


def update_priors(
    priors: Priors,
    lessons: Lessons,
    expert: Int[Array, " n"],
    counts: Bool[Array, " n"],
    selection: Categorical,
) -> Priors:
    """Take in what the selector just answered, and the experts in tasks that count."""
    of_selector, of_experts = priors.stages
    steps, n = lessons.advantage.shape
    room = of_experts.mass.shape[0]
    weight = counts / (steps * jnp.sum(counts))
    took_part = jnp.tile(weight[:, None] * jax.nn.one_hot(expert, room), (steps, 1))

    def for_each(leaf: Array) -> Array:
        flat = leaf.reshape(steps * n, 1, *leaf.shape[2:])
        return jnp.broadcast_to(flat, (steps * n, room, *leaf.shape[2:]))

    answers = jax.tree.map(for_each, lessons.deed.answer)
    even = jnp.full(len(selection.log_probs), 1.0 / len(selection.log_probs))
    return Priors((of_selector.update(selection, even), of_experts.update(answers, took_part)))


def values(
    critics: Critics, x: Float[Array, "t n o"], expert: Int[Array, " n"]
) -> Float[Array, "t n"]:
    """Return the values of t states in n tasks, by the critic of each task's expert."""

    def own(critic: Critics, x: Float[Array, "t o"]) -> Float[Array, " t"]:
        return jax.vmap(lambda x: critic.head(critic.body(x))[0])(x)

    return eqx.filter_vmap(own, in_axes=(eqx.if_array(0), 1), out_axes=1)(of(critics, expert), x)
