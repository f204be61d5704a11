"""One iteration of meta-learning: probe, select, act, learn (Algorithm 2, Section 5.2)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import take_expert
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.rl.envs import Env
from pinfactory.rl.normalise import ReturnScaling, scale_returns
from pinfactory.rl.optimise import gradient_steps, random_minibatches, update_resource
from pinfactory.rl.rollout import RolloutState, Trajectory, rollout, uniforms
from pinfactory.rl.values import Experience, compute_advantages

from .growth import split_experts
from .losses import (
    expert_loss,
    optimiser_of,
    selector_gradient_loss,
    selector_loss,
    update_priors,
)
from .policy import MetaPolicy
from .state import MetaAgentState, SelectorReplay, TaskSlots

# In this share of the selector's tasks any expert may act, in all others the one it chooses.
EXPLORATION = 0.25
# Gradient steps of the selector in every iteration.
SELECTOR_STEPS = 16
# All learning rates fall to this share.
FINAL_RATE = 0.02
# In this share of the slots, a task always stays until its episode ends.
WHOLE_EPISODES = 0.25

State = tuple[MetaAgentState, TaskSlots]


class Info(NamedTuple):
    """What is reported of an iteration.

    Attributes
    ----------
    objective
        Free energy per step of the tasks that experts learn from, in standard deviations of the
        return.
    episode_return
        Mean return of the last episode in every slot in which a task stays until its episode ends;
        missing (NaN) before the first has finished.
    information
        Bits that selector and experts processed, relative to their priors.
    effective_experts
        2^H(M).
    finished
        Whether any of these episodes has finished; None in a report.
    """

    objective: Float[Array, ""]
    episode_return: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    effective_experts: Float[Array, ""]
    finished: Float[Array, ""]


class Outcome(NamedTuple):
    """What n tasks gave: steps to learn from, free energy and nats per task, utility per step."""

    batch: Experience
    free_energy: Float[Array, "n k"]
    cost: Float[Array, " n"]
    utility: Float[Array, "t n"]


class FamilyLearner(eqx.Module):
    """A learner for `pinfactory.core.training.train`; a batch is the parameters of 2n tasks.

    The first n tasks are for the experts, each with the expert that the selector chooses. A task
    stays in its slot until its episode ends, then a new one takes the slot; in more and more slots,
    three quarters of them in the end, a new one comes in every iteration: the better experts are,
    the longer episodes last, and the fewer starts they would see. The other n are for the selector,
    the "second task drawn alike": each is played from the probe on by the expert that the selector
    chooses, or by any expert in a quarter of them. Its free energy teaches the selector's critic,
    and through it the selector. No task serves both. Once experts grow in number the selector stays
    as it is, and experts learn from all 2n tasks.

    Experts learn `n_epochs` times from every step, from `steps_per_batch` of each task at once; the
    selector takes `SELECTOR_STEPS` gradient steps in an iteration, on 2n tasks of the replay each.
    If `plain`, both learn as Algorithm 2 is printed (see `update` of `MetaSpecialistAgent`).
    """

    env: Env
    n_tasks: int = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)
    n_epochs: int = eqx.field(static=True)
    steps_per_batch: int = eqx.field(static=True)
    plain: bool = eqx.field(static=True)

    def step(self, key: Key[Array, ""], state: State, tasks: PyTree) -> tuple[State, Info]:
        """Return agent and tasks after one iteration."""
        agent, slots = state
        agent = split_experts(agent)
        selector_fixed = agent.selector_fixed & (not self.plain)
        keys = jax.random.split(key, 5)
        policy, n = agent.policy, self.n_tasks

        probed = policy.run_probe(self.env, keys[0], tasks)
        if not self.plain:
            moments = policy.transitions.update(probed.transitions)
            policy = eqx.tree_at(lambda p: p.transitions, policy, moments)
        selection = policy.select(probed.transitions)
        chosen = selection.sample(keys[1]).astype(jnp.int32)
        exploring = jnp.where(selector_fixed | self.plain, 0.0, EXPLORATION)
        tried = policy.explore(keys[2], selection.probs[n:], exploring)

        def refill(new: Array, old: Array) -> Array:
            return jnp.where(slots.over.reshape(-1, *(1,) * (old.ndim - 1)), new[:n], old)

        environments, slot_tasks = jax.tree.map(
            refill, (probed.environments, tasks), (slots.environments, slots.tasks)
        )
        expert = refill(chosen, slots.expert)
        # The experts' tasks, followed by the selector's.
        all_environments, all_tasks = jax.tree.map(
            lambda own, new: jnp.concatenate([own, new[n:]]),
            (environments, slot_tasks),
            (probed.environments, tasks),
        )
        all_experts = jnp.concatenate([expert, tried])
        environments, trajectory = self._act(
            keys[3], policy, all_environments, all_tasks, all_experts
        )
        agent = eqx.tree_at(lambda a: a.policy, agent, policy)
        agent, outcome = self._prepare(agent, trajectory, all_experts)
        new = SelectorReplay(
            probed.transitions[n:], tried, outcome.free_energy[n:], outcome.cost[n:]
        )
        agent = eqx.tree_at(lambda a: a.replay, agent, agent.replay.add(new, agent.iteration))
        agent, nats = self._learn(
            keys[4], agent, outcome.batch, all_experts, selection, selector_fixed
        )
        slots = self._next_slots(agent, slots, environments, slot_tasks, expert, trajectory)
        info = self._info(slots, outcome, selection, nats)
        return (agent, slots), info

    def _act(
        self,
        key: Key[Array, ""],
        policy: MetaPolicy,
        environments: RolloutState,
        tasks: PyTree,
        expert: Int[Array, " n"],
    ) -> tuple[RolloutState, Trajectory]:
        env_key, noise_key = jax.random.split(key)
        experts = take_expert(policy.hierarchy.experts, expert)
        noise = uniforms(noise_key, (self.n_steps, len(expert), policy.actions.n_noise))
        return rollout(
            self.env,
            env_key,
            tasks,
            environments,
            lambda x, starts, state, uniform: (state, policy.act(experts, x, uniform)),
            lambda sample: policy.actions.to_env(sample.action),
            noise,
        )

    def _prepare(
        self, agent: MetaAgentState, trajectory: Trajectory, expert: Int[Array, " n"]
    ) -> tuple[MetaAgentState, Outcome]:
        """Update the scale of returns; compute costs, advantages, targets and free energies."""
        hyper, policy, sample = agent.hyper, agent.policy, trajectory.decision
        scaling = self._scale(agent, trajectory)
        agent = agent.rescaled(scaling.factor)
        prior = policy.priors.stages[1]
        own = take_expert(prior.family, expert)
        nats = jax.vmap(lambda answer: answer.kl(own))(sample.answer)
        charged = nats
        if self.plain:
            charged = sample.log_prob - jax.vmap(own.log_prob)(sample.action)
        nats, charged = (jnp.where(prior.mass[expert] > 0, part, 0.0) for part in (nats, charged))
        price = (1.0 if self.plain else 1.0 - hyper.gamma) / agent.resources[1].beta
        reward, paid = scaling.unit * trajectory.reward, price * charged
        parts = jnp.stack([reward - paid] if self.plain else [reward, -paid], axis=-1)
        x = policy.observations(trajectory.observation)
        next_x = policy.observations(trajectory.next_observation)
        value, next_value = (agent.critics.of_expert(each, expert) for each in (x, next_x))
        # The last step bootstraps, as a truncated one does.
        ends = (trajectory.terminated, trajectory.done.at[-1].set(True), hyper.gamma)
        gae_lambda = jnp.zeros(()) if self.plain else hyper.gae_lambda
        advantage = compute_advantages(parts, value, next_value, *ends, gae_lambda)
        to_end = value + compute_advantages(parts, value, next_value, *ends, jnp.ones(()))
        if not self.plain:
            seen = policy.observations.update(trajectory.observation)
            agent = eqx.tree_at(lambda a: a.policy.observations, agent, seen)
        agent = eqx.tree_at(lambda a: a.scale, agent, scaling.scale)
        target = to_end if self.plain else value + advantage
        batch = Experience(x, sample, jnp.sum(advantage, axis=-1), target)
        return agent, Outcome(batch, to_end[0], jnp.mean(nats, axis=0), reward - paid)

    def _scale(self, agent: MetaAgentState, trajectory: Trajectory) -> ReturnScaling:
        """Return the unit of rewards, measured in the experts' tasks."""
        start = jnp.zeros(self.n_tasks)
        if self.plain:
            return ReturnScaling(agent.scale, jnp.ones(()), jnp.ones(()), start)
        reward, done = (part[:, : self.n_tasks] for part in (trajectory.reward, trajectory.done))
        gamma = agent.hyper.gamma
        return scale_returns(agent.scale, reward, done, start, gamma, jnp.ones_like(reward))

    def _learn(
        self,
        key: Key[Array, ""],
        agent: MetaAgentState,
        batch: Experience,
        expert: Int[Array, " n"],
        selection: Categorical,
        selector_fixed: Bool[Array, ""],
    ) -> tuple[MetaAgentState, Float[Array, ""]]:
        """Take the gradient steps of all four parts; return the nats of the experts as well."""
        expert_key, selector_key = jax.random.split(key)
        for_experts = (jnp.arange(len(expert)) < self.n_tasks) | selector_fixed
        priors = update_priors(agent.policy.priors, batch, expert, for_experts, selection)
        agent = eqx.tree_at(lambda a: a.policy.priors, agent, priors)
        hyper, remaining = agent.hyper, agent.hyper.remaining(agent.iteration)
        pace = 1.0 if self.plain else FINAL_RATE + (1.0 - FINAL_RATE) * remaining
        critic_rate = pace * hyper.critic_learning_rate
        experts, critics, selector, selector_critic = agent.learned

        (experts, critics), expert_optimisers, costs = gradient_steps(
            self._expert_loss(agent, batch, expert),
            (experts, critics),
            agent.optimisers[:2],
            (pace * hyper.learning_rate, critic_rate),
            self._expert_rows(expert_key, agent.iteration, selector_fixed),
            optimiser=optimiser_of(self.plain),
        )
        selector_rate = jnp.where(selector_fixed, 0.0, pace * hyper.selector_learning_rate)

        def loss(parts: Any, rows: Array) -> tuple[Array, Any]:
            now = jax.tree.map(lambda leaf: leaf[rows], agent.replay)
            if self.plain:
                return selector_gradient_loss(parts, now, agent)
            return selector_loss(parts, now, agent, remaining)

        (selector, selector_critic), selector_optimisers, (_, selector_costs) = gradient_steps(
            loss,
            (selector, selector_critic),
            agent.optimisers[2:],
            (selector_rate, critic_rate),
            self._selector_rows(selector_key, agent),
            optimiser=optimiser_of(self.plain),
        )
        resources = tuple(map(update_resource, agent.resources, (selector_costs, costs)))
        agent = eqx.tree_at(
            lambda a: (*a.learned, a.optimisers, a.resources, a.iteration),
            agent,
            (
                experts,
                critics,
                selector,
                selector_critic,
                expert_optimisers + selector_optimisers,
                resources,
                agent.iteration + 1,
            ),
        )
        return agent, jnp.mean(costs)

    def _selector_rows(
        self, key: Key[Array, ""], agent: MetaAgentState
    ) -> Int[Array, "batches rows"]:
        """Return for every minibatch of the selector which tasks of its replay it is made of."""
        room = len(agent.replay.expert)
        if self.plain:
            latest = agent.iteration % (room // self.n_tasks) * self.n_tasks
            return latest + jnp.arange(self.n_tasks)[None]
        full = jnp.minimum((agent.iteration + 1) * self.n_tasks, room)
        return jax.random.randint(key, (SELECTOR_STEPS, 2 * self.n_tasks), 0, full)

    def _expert_rows(
        self, key: Key[Array, ""], iteration: Int[Array, ""], selector_fixed: Bool[Array, ""]
    ) -> tuple[Int[Array, " batches"], Int[Array, "batches rows"]]:
        """Return for every minibatch whose tasks it is from, and which steps of them."""
        rows = random_minibatches(key, self.n_epochs, self.n_steps, self.steps_per_batch)
        # Epochs alternate between the experts' tasks and those the selector no longer needs.
        turn = jnp.where(selector_fixed, (iteration + jnp.arange(self.n_epochs)) % 2, 0)
        return jnp.repeat(turn, len(rows) // self.n_epochs), rows

    def _expert_loss(
        self, agent: MetaAgentState, batch: Experience, expert: Int[Array, " n"]
    ) -> Any:
        n = self.n_tasks
        # Steps in the experts' and in the selector's tasks apart.
        halves, experts = jax.tree.map(
            lambda leaf: jnp.stack([leaf[:, :n], leaf[:, n:]]), (batch, expert[None])
        )

        def loss(parts: Any, chosen: tuple[Array, Array]) -> tuple[Array, Array]:
            half, rows = chosen
            now = jax.tree.map(lambda leaf: leaf[half, rows], halves)
            return expert_loss(parts, now, experts[half, 0], agent, self.plain)

        return loss

    def _next_slots(
        self,
        agent: MetaAgentState,
        slots: TaskSlots,
        environments: RolloutState,
        tasks: PyTree,
        expert: Int[Array, " n"],
        trajectory: Trajectory,
    ) -> TaskSlots:
        """Return the slots after an iteration, and mark those that get a new task."""
        n = self.n_tasks
        own = jax.tree.map(lambda leaf: leaf[:n], environments)
        ended = jnp.any(trajectory.done[:, :n], axis=0)
        n_whole = self._n_whole
        remaining = agent.hyper.remaining(agent.iteration)
        return TaskSlots(
            own,
            tasks,
            expert,
            ended | self.plain | (jnp.arange(n) >= n_whole + remaining * (n - n_whole)),
            jnp.where(ended, own.statistics.last_total, slots.returns),
            slots.finished | ended,
        )

    @property
    def _n_whole(self) -> int:
        """Slots in which every task stays until its episode ends."""
        return max(1, int(WHOLE_EPISODES * self.n_tasks))

    def _info(
        self, slots: TaskSlots, outcome: Outcome, selection: Categorical, nats: Float[Array, ""]
    ) -> Info:
        p_m = Categorical.from_probs(jnp.mean(selection.probs, axis=0))
        finished = slots.finished[: self._n_whole]
        total = jnp.sum(jnp.where(finished, slots.returns[: self._n_whole], 0.0))
        return Info(
            jnp.mean(outcome.utility[:, : self.n_tasks]),
            total / jnp.maximum(jnp.sum(finished), 1),
            (jnp.mean(selection.kl(p_m)) * BITS_PER_NAT, nats * BITS_PER_NAT),
            jnp.exp(p_m.entropy()),
            jnp.any(finished).astype(float),
        )
