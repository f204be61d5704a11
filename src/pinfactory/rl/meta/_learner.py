"""One iteration of meta-learning: probe, choose, act, learn (Algorithm 2, Section 5.2)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from pinfactory.core.families import Categorical
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.rl._advantages import advantages
from pinfactory.rl._normalise import discounted
from pinfactory.rl._rollout import Trajectory, World, rollout, uniforms
from pinfactory.rl._update import shuffles
from pinfactory.rl.envs import Env

from ._division import divide
from ._improve import Lessons, descend, expert_loss, selector_loss, update_priors, values
from ._mind import MetaMind, TaskWorld, Trials
from ._policy import MetaPolicy, of

# In this share of the selector's tasks anyone may be tried, in all others whom it chooses.
CURIOSITY = 0.25
# All learning rates fall to this share.
SLOWEST = 0.02
# In this share of their places, experts stay with every task until its episode ends.
STEADY = 0.25


class Info(NamedTuple):
    """What happened in an iteration.

    Attributes
    ----------
    objective
        Free energy of the tasks that experts learn from, per step, in deviations of the return.
    episode_return
        Mean return of the last episode in every place where a task stays until its episode ends.
    information
        Bits that selector and experts paid for with their priors.
    effective_experts
        2^H(M).
    """

    objective: Float[Array, ""]
    episode_return: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    effective_experts: Float[Array, ""]


class FamilyLearner(eqx.Module):
    """A learner for `pinfactory.core.training.train`; a batch is the bodies of 2n tasks.

    The first n tasks are for the experts, with the expert that the selector chooses. A task stays
    until its episode ends, then a new one takes its place; in more and more places, three quarters
    of them in the end, a new one comes in every iteration: the better experts are, the longer
    episodes last, and the less they would see of starts. The other n are for the selector, the
    "second task drawn alike": each is played from the probe on by an expert that the selector
    chooses, or by anyone in a quarter of them. Its free energy teaches the judge, and through it
    the selector. No task serves both. After childhood the selector stays as it is, and experts
    learn from all 2n tasks.

    Attributes
    ----------
    n_steps
        Steps that are played in every iteration.
    epochs, rows
        How often experts learn from every step, and how many steps of each task at once.
    reviews, review_size
        Gradient steps of the selector in every iteration, and the trials each one looks at.
    """

    env: Env
    n_tasks: int = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)
    epochs: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)
    reviews: int = eqx.field(static=True)
    review_size: int = eqx.field(static=True)

    def step(
        self, key: Key[Array, ""], state: tuple[MetaMind, TaskWorld], tasks: PyTree
    ) -> tuple[tuple[MetaMind, TaskWorld], Info]:
        """Return mind and tasks after one iteration."""
        mind, places = state
        mind = divide(mind)
        settled = mind.settled
        keys = jax.random.split(key, 5)
        policy, n = mind.policy, self.n_tasks

        probed = policy.explore(self.env, keys[0], tasks)
        moments = policy.transitions.update(probed.transitions)
        policy = eqx.tree_at(lambda p: p.transitions, policy, moments)
        selection = policy.select(probed.transitions)
        chosen = selection.sample(keys[1]).astype(jnp.int32)
        even = policy.hierarchy.available / jnp.sum(policy.hierarchy.available)
        curiosity = jnp.where(settled, 0.0, CURIOSITY)
        trial = jnp.log(curiosity * even + (1.0 - curiosity) * selection.probs[n:])
        tried = jax.random.categorical(keys[2], trial).astype(jnp.int32)

        def fill(new: Array, old: Array) -> Array:
            return jnp.where(places.over.reshape(-1, *(1,) * (old.ndim - 1)), new[:n], old)

        world, bodies = jax.tree.map(fill, (probed.world, tasks), (places.world, places.tasks))
        expert = fill(chosen, places.expert)

        def beside(first: Array, second: Array) -> Array:
            return jnp.concatenate([first, second[n:]])

        everywhere, everything = jax.tree.map(beside, (world, bodies), (probed.world, tasks))
        everybody = jnp.concatenate([expert, tried])
        world, trajectory = self._act(keys[3], policy, everywhere, everything, everybody)
        mind = eqx.tree_at(lambda m: m.policy, mind, policy)
        mind, lessons, free_energy, cost, utility = self._appraise(mind, trajectory, everybody)

        trials = Trials(probed.transitions[n:], tried, free_energy[n:], cost[n:])
        room = len(mind.trials.expert) // n
        kept = mind.trials.add(trials, (mind.iteration % room) * n)
        mind = eqx.tree_at(lambda m: m.trials, mind, kept)
        mind, nats = self._learn(keys[4], mind, lessons, everybody, selection, settled)

        own = jax.tree.map(lambda leaf: leaf[:n], world)
        ended = jnp.any(trajectory.done[:, :n], axis=0)
        returns = jnp.where(ended, own.tally.last_total, places.returns)
        steady = max(1, int(STEADY * n))
        left = mind.hyper.left(mind.iteration)
        over = ended | (jnp.arange(n) >= steady + left * (n - steady))
        p_m = Categorical.from_probs(jnp.mean(selection.probs, axis=0))
        info = Info(
            jnp.mean(utility[:, :n]),
            jnp.mean(returns[:steady]),
            (jnp.mean(selection.kl(p_m)) * BITS_PER_NAT, nats * BITS_PER_NAT),
            jnp.exp(p_m.entropy()),
        )
        return (mind, TaskWorld(own, bodies, expert, over, returns)), info

    def first_tasks(self, mind: MetaMind, key: Key[Array, ""], tasks: PyTree) -> TaskWorld:
        """Return places that are all to be filled in the first iteration."""
        return _vacant(self.env, mind.policy, key, tasks)

    def _act(
        self,
        key: Key[Array, ""],
        policy: MetaPolicy,
        world: World,
        tasks: PyTree,
        expert: Int[Array, " n"],
    ) -> tuple[World, Trajectory]:
        env_key, noise_key = jax.random.split(key)
        experts = of(policy.hierarchy.experts, expert)
        noise = uniforms(noise_key, (self.n_steps, len(expert), policy.actions.n_noise))
        return rollout(
            self.env,
            env_key,
            tasks,
            world,
            lambda x, fresh, memory, uniform: (memory, policy.act(experts, x, uniform)),
            lambda deed: policy.actions.to_env(deed.action),
            noise,
        )

    def _appraise(
        self, mind: MetaMind, trajectory: Trajectory, expert: Int[Array, " n"]
    ) -> tuple[MetaMind, Lessons, Float[Array, " n"], Float[Array, " n"], Float[Array, "t n"]]:
        """Price the information, and say how good every step and every trial was."""
        hyper, policy, deed = mind.hyper, mind.policy, trajectory.choice
        nothing = jnp.zeros(len(expert))
        _, returns = discounted(trajectory.reward, trajectory.done, nothing, hyper.gamma)
        returns = returns[:, : self.n_tasks]
        scale = mind.scale.update(returns, jnp.full(returns.shape, 1.0 / returns.size))
        unit = scale(jnp.ones(()))
        # What was learned about returns stays true in the new unit (Pop-Art).
        factor = jnp.where(mind.scale.mass > 0, unit / mind.scale(jnp.ones(())), 1.0)
        critics = mind.critics.rescaled(factor)
        readout = jax.tree.map(lambda w: factor * w, mind.judge.readout)

        prior = mind.policy.priors.stages[1]
        cost = jax.vmap(lambda answer: answer.kl(of(prior.family, expert)))(deed.answer)
        cost = jnp.where(prior.mass[expert] > 0, cost, 0.0)
        utility = unit * trajectory.reward - (1.0 - hyper.gamma) / hyper.beta_expert * cost
        x = policy.observations(trajectory.observation)
        value = values(critics, x, expert)
        after = values(critics, policy.observations(trajectory.next_observation), expert)
        # The last step bootstraps, as a truncated one does.
        done = trajectory.done.at[-1].set(True)
        ends = (trajectory.terminated, done, hyper.gamma)
        gained = advantages(utility, value, after, *ends, hyper.trace)
        free_energy = (advantages(utility, value, after, *ends, jnp.ones(())) + value)[0]

        mind = eqx.tree_at(
            lambda m: (m.scale, m.critics, m.judge.readout, m.trials.free_energy),
            mind,
            (scale, critics, readout, factor * mind.trials.free_energy),
        )
        seen = policy.observations.update(trajectory.observation)
        return (
            eqx.tree_at(lambda m: m.policy.observations, mind, seen),
            Lessons(x, deed, gained, value + gained),
            free_energy,
            jnp.mean(cost, axis=0),
            utility,
        )

    def _learn(
        self,
        key: Key[Array, ""],
        mind: MetaMind,
        lessons: Lessons,
        expert: Int[Array, " n"],
        selection: Categorical,
        settled: Bool[Array, ""],
    ) -> tuple[MetaMind, Float[Array, ""]]:
        """Improve all four parts; return the mind and what experts paid, in nats."""
        order_key, review_key = jax.random.split(key)
        for_experts = (jnp.arange(len(expert)) < self.n_tasks) | settled
        priors = update_priors(mind.policy.priors, lessons, expert, for_experts, selection)
        mind = eqx.tree_at(lambda m: m.policy.priors, mind, priors)
        left = mind.hyper.left(mind.iteration)
        pace = SLOWEST + (1.0 - SLOWEST) * left

        order = shuffles(order_key, self.epochs, self.n_steps)
        rows = order[:, : self.n_steps // self.rows * self.rows].reshape(-1, self.rows)
        # Epochs take turns with the experts' tasks and those that the selector no longer needs.
        turn = jnp.where(settled, (mind.iteration + jnp.arange(self.epochs)) % 2, 0)
        half = jnp.repeat(turn, len(rows) // self.epochs)
        lessons, expert = jax.tree.map(self._halves, (lessons, expert[None]))
        full = jnp.minimum((mind.iteration + 1) * self.n_tasks, len(mind.trials.expert))
        looks = jax.random.randint(review_key, (self.reviews, self.review_size), 0, full)

        def study(parts: Any, batch: tuple[Array, Array]) -> tuple[Array, Array]:
            half, rows = batch
            now = jax.tree.map(lambda leaf: leaf[half, rows], lessons)
            return expert_loss(parts, now, expert[half, 0], mind)

        def review(parts: Any, rows: Array) -> tuple[Array, Array]:
            now = jax.tree.map(lambda leaf: leaf[rows], mind.trials)
            return selector_loss(parts, now, mind, left)

        experts, critics, selector, judge = mind.learned
        hyper = mind.hyper
        (experts, critics), opts, costs = descend(
            study,
            (experts, critics),
            mind.optimisers[:2],
            (pace * hyper.expert_rate, pace * hyper.critic_rate),
            (half, rows),
        )
        (selector, judge), more, _ = descend(
            review,
            (selector, judge),
            mind.optimisers[2:],
            (jnp.where(settled, 0.0, pace * hyper.selector_rate), pace * hyper.critic_rate),
            looks,
        )
        return eqx.tree_at(
            lambda m: (*m.learned, m.optimisers, m.iteration),
            mind,
            (experts, critics, selector, judge, opts + more, mind.iteration + 1),
        ), jnp.mean(costs)

    def _halves(self, leaf: Shaped[Array, "t n2 ..."]) -> Shaped[Array, "2 t n ..."]:
        """Return steps in the experts' and in the selector's tasks apart."""
        return jnp.stack([leaf[:, : self.n_tasks], leaf[:, self.n_tasks :]])


@eqx.filter_jit
def _vacant(env: Env, policy: MetaPolicy, key: Key[Array, ""], tasks: PyTree) -> TaskWorld:
    probed = policy.explore(env, key, tasks)
    n = probed.world.fresh.shape[0]
    return TaskWorld(probed.world, tasks, jnp.zeros(n, jnp.int32), jnp.ones(n, bool), jnp.zeros(n))
