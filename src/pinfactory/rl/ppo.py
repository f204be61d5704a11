"""Proximal policy optimisation of selector and experts on the free energy (Section 3.3)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from pinfactory.core.batches import take
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.core.learning import scan

from .growth import split_experts
from .information import information_costs, log_ratios, update_priors
from .normalise import ReturnScaling, scale_returns
from .optimise import gradient_step, random_minibatches
from .policy import HierarchicalAction, select_answers, take_one
from .rollout import EpisodeStatistics, Trajectory
from .state import AgentState, Visited
from .values import Critics, compute_advantages, discounted_sums, normalise_advantages


class Info(NamedTuple):
    """What is reported of an iteration.

    Attributes
    ----------
    objective
        Free energy of a step: reward minus the cost of information, in the units of the agent.
    episode_return, episode_length
        Means over the environments' last episodes; missing (NaN) before the first has finished.
    information
        Bits that selector and experts processed, relative to their priors.
    beta
        Resource parameters of both.
    critic_error
        Squared error of the critics, in the units of the agent.
    finished
        Whether any episode has finished; None in a report (see `rollout.report_missing`).
    """

    objective: Float[Array, ""]
    episode_return: Float[Array, ""]
    episode_length: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    beta: tuple[Float[Array, ""], ...]
    critic_error: Float[Array, ""]
    finished: Float[Array, ""]


class PPOBatch(eqx.Module):
    """Steps to learn from; columns of `advantage` are for selector and expert.

    `target` has an entry for each critic in charge of a step, and for each part of its value.
    """

    x: Float[Array, "b o"]
    action: HierarchicalAction
    advantage: Float[Array, "b 2"]
    target: Float[Array, "b l k"]
    weight: Float[Array, " b"]


class PPO(eqx.Module):
    """Learns from a trajectory; settings are those of `SpecialistAgent`.

    With `critic="shared"` the one value is that of the full free energy, costs of both stages
    included. Otherwise the critic of each expert bootstraps from its own value as if the expert
    acted for ever, and all are of the experts' free energy; with `"printed"` the selector's
    advantage is that of the expert who acted, Ā(x, m) = E[A_m(x, a)]. `clipped` and `sampled` are
    `update="clipped"` and `expectation="sampled"`. Critics of the plain update regress the sum of
    all that follows. `optimiser` is an Optax transformation of the gradient, without the learning
    rate.
    """

    critic: str = eqx.field(static=True)
    clipped: bool = eqx.field(static=True)
    sampled: bool = eqx.field(static=True)
    units: str = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)
    optimiser: optax.GradientTransformation = eqx.field(static=True)
    n_epochs: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def step(
        self, key: Key[Array, ""], state: AgentState, data: tuple[Trajectory, EpisodeStatistics]
    ) -> tuple[AgentState, Info]:
        """Return the state after one iteration of learning from a trajectory."""
        trajectory, statistics = data
        state, batch, info = self.prepare(state, trajectory, statistics)
        n = len(batch.weight)
        rows = random_minibatches(key, self.n_epochs, n, self.batch_size)

        def step(state: AgentState, rows: Int[Array, " b"]) -> tuple[AgentState, Array]:
            return self._gradient_step(state, take(batch, rows))

        state, errors = scan(step, state, rows)
        observations = state.policy.observations
        if self.normalise:
            observations = observations.update(trajectory.observation, trajectory.weight)
        visited = Visited(
            trajectory.observation.reshape(state.visited.observation.shape),
            batch.action.expert,
            batch.action.selected,
        )
        state = eqx.tree_at(
            lambda s: (s.policy.observations, s.visited, s.iteration, s.timesteps),
            state,
            (observations, visited, state.iteration + 1, state.timesteps + trajectory.reward.size),
        )
        if state.growth is not None:
            acted = (batch.x, batch.action.expert, batch.weight)
            state = split_experts(jax.random.fold_in(key, 1), state, *acted)
        return state, info._replace(critic_error=jnp.mean(errors))

    def prepare(
        self, state: AgentState, trajectory: Trajectory, statistics: EpisodeStatistics
    ) -> tuple[AgentState, PPOBatch, Info]:
        """Update priors and the scale of returns; compute costs, advantages and targets."""
        action = jax.tree.map(_flat, trajectory.decision)
        weight = _flat(trajectory.weight) / jnp.sum(trajectory.weight)
        x = _flat(state.policy.observations(trajectory.observation))
        decision = jax.vmap(state.policy.hierarchy)(x)
        priors = update_priors(state.priors, decision, action, weight)
        (selection,) = decision.selections
        answer = select_answers(decision.answers, action.expert)
        costs = information_costs(selection, answer, action, priors)
        charged = log_ratios(selection, answer, action, priors) if self.sampled else costs

        scaling = self._scale(state, trajectory)
        critics = state.critics.rescaled(scaling.factor)
        paid = self._price(state) * charged
        reward = scaling.unit * _flat(trajectory.reward)
        cost = jnp.sum(paid, axis=1) if self.critic == "shared" else paid[:, 1]
        parts = [reward, -cost] if self.units == "return" else [reward - cost]
        advantage, target = self._advantages(
            state, critics, x, action, jnp.stack(parts, axis=-1), trajectory
        )
        if self.sampled and self.critic != "shared":
            # No critic of the paper's has the price of a selection, which is the selector's alone.
            advantage = advantage.at[:, 0].add(-paid[:, 0])
        batch = PPOBatch(x, action, advantage, target, weight * weight.size)
        state = eqx.tree_at(
            lambda s: (s.priors, s.scale, s.discounted, s.critics),
            state,
            (priors, scaling.scale, scaling.discounted, critics),
        )
        objective = jnp.sum(weight * (reward - jnp.sum(paid, axis=1)))
        return state, batch, self._info(state, objective, weight, action, costs, statistics)

    def loss(
        self, parts: tuple[Hierarchy, Critics], state: AgentState, batch: PPOBatch
    ) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, "2"]]]:
        """Return what a minibatch minimises; the critics' error, and the nats of both stages."""
        hierarchy, critics = parts
        action = batch.action
        share = batch.weight / jnp.sum(batch.weight)
        advantage, unit = batch.advantage, jnp.ones(2)
        if self.normalise:
            advantage, unit = normalise_advantages(advantage, share)
        # The selector is responsible for the steps at which it chose.
        counts = jnp.stack([share * action.selected, share], axis=1)
        decision = jax.vmap(hierarchy)(batch.x)
        (selection,) = decision.selections
        answer = select_answers(decision.answers, action.expert)
        log_prob = jnp.stack(
            [selection.log_prob(action.expert), answer.log_prob(action.action)], axis=1
        )
        costs = information_costs(selection, answer, action, state.priors)
        gain = log_prob * advantage
        if self.clipped:
            before = jnp.stack([action.log_prob_selector, action.log_prob_expert], axis=1)
            gain = clipped_surrogate(log_prob, before, advantage, state.hyper.clip_range)
        objective = jnp.sum(counts * gain)
        if not self.sampled:  # else prices are in the advantages, which know what was sampled
            objective -= jnp.sum(share[:, None] * unit * self._price(state) * costs)
        errors = jnp.sum((self._values(critics, batch.x, action) - batch.target) ** 2, axis=-1)
        error = jnp.sum(share * jnp.mean(errors, axis=1))
        nats = jnp.sum(share[:, None] * costs, axis=0) / jnp.maximum(jnp.sum(counts, axis=0), 1e-8)
        return 0.5 * error - objective, (error, nats)

    def _gradient_step(self, state: AgentState, batch: PPOBatch) -> tuple[AgentState, Array]:
        """Take one gradient step on a minibatch."""
        (learned,), (optimiser,), (error, nats) = gradient_step(
            lambda parts: self.loss(parts[0], state, batch),
            ((state.policy.hierarchy, state.critics),),
            (state.optimiser,),
            (state.hyper.rate(state.iteration),),
            self.optimiser,
        )
        resources = tuple(
            resource.update(nats[stage]) for stage, resource in enumerate(state.resources)
        )
        state = eqx.tree_at(
            lambda s: (s.policy.hierarchy, s.critics, s.optimiser, s.resources),
            state,
            (*learned, optimiser, resources),
        )
        return state, error

    def _price(self, state: AgentState) -> Float[Array, "2"]:
        """Return what a nat costs selector and experts in one step."""
        share = 1.0 - state.hyper.gamma if self.units == "return" else 1.0
        return share / jnp.stack([resource.beta for resource in state.resources])

    def _scale(self, state: AgentState, trajectory: Trajectory) -> ReturnScaling:
        """Return the unit of rewards."""
        if self.units == "reward":
            return ReturnScaling(state.scale, jnp.ones(()), jnp.ones(()), state.discounted)
        reward, done, weight = trajectory.reward, trajectory.done, trajectory.weight
        return scale_returns(state.scale, reward, done, state.discounted, state.hyper.gamma, weight)

    def _advantages(
        self,
        state: AgentState,
        critics: Critics,
        x: Float[Array, "b o"],
        action: HierarchicalAction,
        utility: Float[Array, "b k"],
        trajectory: Trajectory,
    ) -> tuple[Float[Array, "b 2"], Float[Array, "b l k"]]:
        """Return the advantages of selector and expert, and the targets of the critics."""
        shape = trajectory.reward.shape
        next_x = _flat(state.policy.observations(trajectory.next_observation))
        value = self._values(critics, x, action)
        next_value = self._values(critics, next_x, action)
        utility = jnp.broadcast_to(utility[:, None], value.shape)

        gained, now, then = (
            part.reshape(*shape, *part.shape[1:]) for part in (utility, value, next_value)
        )
        ends, hyper = (trajectory.terminated, trajectory.done), state.hyper
        advantage = _flat(
            compute_advantages(gained, now, then, *ends, hyper.gamma, hyper.gae_lambda)
        )
        target = value + advantage
        if not self.clipped:
            target = _flat(discounted_sums(gained, then, *ends, hyper.gamma))
        of_critics = jnp.sum(advantage, axis=-1)
        of_critics = of_critics[:, 1:] if self.critic == "printed" else of_critics
        return jnp.broadcast_to(of_critics, (len(x), 2)), target

    def _values(
        self, critics: Critics, x: Float[Array, "n o"], action: HierarchicalAction
    ) -> Float[Array, "n l k"]:
        """Return the value for the selector and, with critics of their own, for the expert."""
        values = critics(x)
        if self.critic == "shared":
            return values
        own = take_one(values, 1 + action.expert)
        return jnp.stack([values[:, 0], own], axis=1)

    def _info(
        self,
        state: AgentState,
        objective: Float[Array, ""],
        weight: Float[Array, " b"],
        action: HierarchicalAction,
        costs: Float[Array, "b 2"],
        statistics: EpisodeStatistics,
    ) -> Info:
        selected = weight * action.selected
        information = (
            # An expert may be held for longer than an update lasts, with no choice in it.
            jnp.sum(selected * costs[:, 0]) / jnp.maximum(jnp.sum(selected), 1e-8),
            jnp.sum(weight * costs[:, 1]),
        )
        mean_return, mean_length, finished = statistics.means()
        return Info(
            objective,
            mean_return,
            mean_length,
            tuple(nats * BITS_PER_NAT for nats in information),
            tuple(resource.beta for resource in state.resources),
            jnp.zeros(()),
            finished,
        )


def clipped_surrogate(
    log_prob: Float[Array, "..."],
    before: Float[Array, "..."],
    advantage: Float[Array, "..."],
    clip_range: Float[Array, ""],
) -> Float[Array, "..."]:
    """Return PPO's min(ρ A, clip(ρ, 1 ± ε) A) with the ratio ρ of new to old probability."""
    ratio = jnp.exp(log_prob - before)
    limited = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return jnp.minimum(ratio * advantage, limited * advantage)


def _flat(leaf: Array) -> Array:
    """Join the axes of time and of environments."""
    return leaf.reshape(-1, *leaf.shape[2:])
