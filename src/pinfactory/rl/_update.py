"""Learning from experience: two-stage actor–critic on the free energy (Section 3.3)."""

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from pinfactory.core.families import Categorical
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.core.priors import Priors

from ._advantages import advantages
from ._mind import OPTIMISER, Critics, Mind
from ._normalise import discounted
from ._policy import Choice, of_expert
from ._rollout import Tally, Trajectory


class Info(NamedTuple):
    """What happened in an iteration.

    Attributes
    ----------
    objective
        Free energy of a step: reward in deviations of the return, less the price of information.
    episode_return, episode_length
        Means over the environments' last episodes.
    information
        Bits that selector and experts paid for with their priors.
    beta
        Resource parameters of both.
    critic_error
        Squared error of the critics, in deviations of the return.
    """

    objective: Float[Array, ""]
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    beta: tuple[Float[Array, ""], ...]
    critic_error: Float[Array, ""]


class Lesson(eqx.Module):
    """A step to learn from, or many of them."""

    x: Float[Array, "b o"]
    choice: Choice
    advantage: Float[Array, "b 2"]
    target: Float[Array, "b l"]
    weight: Float[Array, " b"]


class Improver(eqx.Module):
    """Learns from a trajectory.

    Attributes
    ----------
    critic
        `"shared"`: one value of the full free energy, prices of both stages included, for
        selector and experts. `"paper"`: a critic for the selector and one for each expert, who
        bootstraps from its own value as if it acted for ever, both on the experts' free energy.
    clipped
        Whether to use PPO's clipped ratios, or the plain policy gradient of the paper.
    epochs, minibatch
        How often every step is learned from, and how many at once.
    """

    critic: Literal["shared", "paper"] = eqx.field(static=True)
    clipped: bool = eqx.field(static=True)
    epochs: int = eqx.field(static=True)
    minibatch: int = eqx.field(static=True)

    def improve(
        self, key: Key[Array, ""], mind: Mind, trajectory: Trajectory, tally: Tally
    ) -> tuple[Mind, Info]:
        """Return the mind after one iteration of learning."""
        mind, lessons, info = self._prepare(mind, trajectory, tally)
        n = len(lessons.weight)
        per_epoch = n // self.minibatch
        order = shuffles(key, self.epochs, n)
        rows = order[:, : per_epoch * self.minibatch].reshape(-1, self.minibatch)

        arrays, static = eqx.partition(mind, eqx.is_array)

        def step(arrays: Any, rows: Int[Array, " b"]) -> tuple[Any, Array]:
            lesson = jax.tree.map(lambda leaf: leaf[rows], lessons)
            new, error = self._step(eqx.combine(arrays, static), lesson)
            return eqx.filter(new, eqx.is_array), error

        arrays, errors = jax.lax.scan(step, arrays, rows)
        mind = eqx.combine(arrays, static)
        seen = mind.policy.observations.update(trajectory.observation, trajectory.weight)
        mind = eqx.tree_at(
            lambda m: (m.policy.observations, m.visited, m.iteration, m.timesteps),
            mind,
            (
                seen,
                trajectory.observation.reshape(mind.visited.shape),
                mind.iteration + 1,
                mind.timesteps + trajectory.reward.size,
            ),
        )
        return mind, info._replace(critic_error=jnp.mean(errors))

    def _prepare(
        self, mind: Mind, trajectory: Trajectory, tally: Tally
    ) -> tuple[Mind, Lesson, Info]:
        """Price the information, and say how much better each decision was than expected."""
        shape, hyper = trajectory.reward.shape, mind.hyper

        def flat(leaf: Array) -> Array:
            return leaf.reshape(-1, *leaf.shape[2:])

        choice = jax.tree.map(flat, trajectory.choice)
        weight = flat(trajectory.weight) / jnp.sum(trajectory.weight)
        x = flat(mind.policy.observations(trajectory.observation))
        next_x = flat(mind.policy.observations(trajectory.next_observation))

        decision = jax.vmap(mind.policy.hierarchy)(x)
        (selection,) = decision.selections
        selector_prior, expert_prior = mind.priors.stages
        taken = weight[:, None] * jax.nn.one_hot(choice.expert, decision.answers.batch_shape[1])
        priors = Priors(
            (
                selector_prior.update(selection, weight * choice.chosen),
                expert_prior.update(decision.answers, taken),
            )
        )
        costs = stage_costs(selection, of_expert(decision.answers, choice.expert), choice, priors)

        so_far, returns = discounted(
            trajectory.reward, trajectory.done, mind.discounted, hyper.gamma
        )
        scale = mind.scale.update(returns, trajectory.weight / trajectory.weight.size)
        unit = scale(jnp.ones(()))
        critics = mind.critics.rescaled(
            jnp.where(mind.scale.mass > 0, unit / mind.scale(jnp.ones(())), 1.0)
        )

        betas = tuple(resource.beta for resource in mind.resources)
        price = (1.0 - hyper.gamma) / jnp.stack(betas)
        paid = price * costs
        utility = unit * flat(trajectory.reward) - paid[:, 1]
        free_energy = utility - paid[:, 0]
        charged = free_energy[:, None] if self.critic == "shared" else jnp.stack([utility] * 2, 1)
        value = self._values(critics, x, choice)
        next_value = self._values(critics, next_x, choice)

        def unflat(a: Array) -> Array:
            return a.T.reshape(-1, *shape)

        gained = jax.vmap(advantages, in_axes=(0, 0, 0, None, None, None, None))(
            unflat(charged),
            unflat(value),
            unflat(next_value),
            trajectory.terminated,
            trajectory.done,
            hyper.gamma,
            hyper.trace,
        )
        gained = gained.reshape(gained.shape[0], -1).T
        lessons = Lesson(
            x,
            choice,
            jnp.broadcast_to(gained, (len(gained), 2)),
            value + gained,
            weight * weight.size,
        )
        mind = eqx.tree_at(
            lambda m: (m.priors, m.scale, m.discounted, m.critics),
            mind,
            (priors, scale, so_far, critics),
        )
        chosen = weight * choice.chosen
        information = (
            # An expert may be held for longer than an update lasts, and nobody be chosen in it.
            jnp.sum(chosen * costs[:, 0]) / jnp.maximum(jnp.sum(chosen), 1e-8),
            jnp.sum(weight * costs[:, 1]),
        )
        info = Info(
            jnp.sum(weight * free_energy),
            *tally.means(),
            tuple(nats * BITS_PER_NAT for nats in information),
            betas,
            jnp.zeros(()),
        )
        return mind, lessons, info

    def _values(
        self, critics: Critics, x: Float[Array, "n o"], choice: Choice
    ) -> Float[Array, "n l"]:
        """Return the value for the selector and, with critics of their own, for the expert."""
        values = critics(x)
        if self.critic == "shared":
            return values
        own = jnp.take_along_axis(values, 1 + choice.expert[:, None], axis=1)
        return jnp.concatenate([values[:, :1], own], axis=1)

    def _step(self, mind: Mind, lesson: Lesson) -> tuple[Mind, Array]:
        """Take one gradient step on a minibatch."""
        hyper, choice = mind.hyper, lesson.choice
        price = (1.0 - hyper.gamma) / jnp.stack([resource.beta for resource in mind.resources])
        share = lesson.weight / jnp.sum(lesson.weight)
        centre = jnp.sum(share[:, None] * lesson.advantage, axis=0)
        spread = jnp.sqrt(jnp.sum(share[:, None] * (lesson.advantage - centre) ** 2, axis=0))
        unit = 1.0 / (spread + 1e-8)
        advantage = unit * (lesson.advantage - centre)
        # The selector answers for the steps at which it chose.
        counts = jnp.stack([share * choice.chosen, share], axis=1)

        @eqx.filter_value_and_grad(has_aux=True)
        def loss(learned: Any) -> tuple[Array, tuple[Array, Array]]:
            hierarchy, critics = learned
            decision = jax.vmap(hierarchy)(lesson.x)
            (selection,) = decision.selections
            answer = of_expert(decision.answers, choice.expert)
            log_prob = jnp.stack(
                [selection.log_prob(choice.expert), answer.log_prob(choice.action)], axis=1
            )
            costs = stage_costs(selection, answer, choice, mind.priors)
            gain = self._gain(log_prob, choice, advantage, hyper.clip)
            error = jnp.mean((self._values(critics, lesson.x, choice) - lesson.target) ** 2, axis=1)
            error = jnp.sum(share * error)
            objective = jnp.sum(counts * gain) - jnp.sum(share[:, None] * unit * price * costs)
            return 0.5 * error - objective, (error, jnp.sum(share[:, None] * costs, axis=0))

        learned = (mind.policy.hierarchy, mind.critics)
        (_, (error, nats)), gradient = loss(learned)
        direction, optimiser = OPTIMISER.update(gradient, mind.optimiser)
        rate = hyper.rate(mind.iteration)
        hierarchy, critics = eqx.apply_updates(
            learned, jax.tree.map(lambda d: -rate * d, direction)
        )
        nats = nats / jnp.maximum(jnp.sum(counts, axis=0), 1e-8)
        resources = tuple(
            resource.update(nats[stage]) for stage, resource in enumerate(mind.resources)
        )
        mind = eqx.tree_at(
            lambda m: (m.policy.hierarchy, m.critics, m.optimiser, m.resources),
            mind,
            (hierarchy, critics, optimiser, resources),
        )
        return mind, error

    def _gain(
        self,
        log_prob: Float[Array, "b 2"],
        choice: Choice,
        advantage: Float[Array, "b 2"],
        clip: Float[Array, ""],
    ) -> Float[Array, "b 2"]:
        """Return what the policy gradient climbs, for selector and expert."""
        before = jnp.stack([choice.log_selector, choice.log_expert], axis=1)
        return (clipped_gain if self.clipped else plain_gain)(log_prob, before, advantage, clip)


def stage_costs(
    selection: Categorical, answer: Any, choice: Choice, priors: Priors
) -> Float[Array, "n 2"]:
    """Return KL(p(m|x) ‖ p(m)) where the selector chose, and KL(p(a|x,m) ‖ p(a|m)), in nats."""
    selector_prior, expert_prior = (prior.family for prior in priors.stages)
    assert isinstance(selector_prior, Categorical)
    own = jax.tree.map(lambda leaf: leaf[choice.expert], expert_prior)
    return jnp.stack([choice.chosen * selection.kl(selector_prior), answer.kl(own)], axis=1)


def clipped_gain(
    log_prob: Float[Array, "..."],
    before: Float[Array, "..."],
    advantage: Float[Array, "..."],
    clip: Float[Array, ""],
) -> Float[Array, "..."]:
    """Return PPO's min(ρ A, clip(ρ, 1 ± ε) A) with the ratio ρ of new to old probability."""
    ratio = jnp.exp(log_prob - before)
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip, 1.0 + clip) * advantage)


def plain_gain(
    log_prob: Float[Array, "..."],
    before: Float[Array, "..."],
    advantage: Float[Array, "..."],
    clip: Float[Array, ""],
) -> Float[Array, "..."]:
    """Return log p · A, whose gradient is the policy gradient of Section 3.3."""
    return log_prob * advantage


def shuffles(key: Key[Array, ""], n_shuffles: int, n: int) -> Int[Array, "s n"]:
    """Return 0 … n − 1 in random orders.

    Random bits with the index in the lowest of them, sorted: ten times faster than `argsort`.
    """
    low = (1 << (n - 1).bit_length()) - 1
    bits = jax.random.bits(key, (n_shuffles, n), jnp.uint32)
    mixed = jnp.sort((bits & ~jnp.uint32(low)) | jnp.arange(n, dtype=jnp.uint32), axis=-1)
    return (mixed & jnp.uint32(low)).astype(jnp.int32)
