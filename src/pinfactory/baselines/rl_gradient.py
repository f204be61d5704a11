"""One policy that a gradient step adapts to a task: MAML's policy gradient, and ProMP.

Both start every task with the same parameters θ, gather experience, take a step

    θ' = θ + α ∇ E[advantage under θ]

and are evaluated by the experience that θ' gathers. MAML (Finn et al. 2017) differentiates the
plain policy gradient through that step. ProMP (Rothfuss et al. 2019) writes the inner objective
with probability ratios, whose second derivatives are those of the expected return, clips the outer
ratios as PPO does, and keeps θ near the policy that gathered the experience.

Networks, observations, rewards' scale and experience per task are those of
`pinfactory.rl.meta.MetaSpecialistAgent`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.constraints import UtilityScale
from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.core.learning import Learner, State
from pinfactory.core.training import Run
from pinfactory.networks import mlp, relu
from pinfactory.rl.actions import Actions, env_actions
from pinfactory.rl.base import LOGS
from pinfactory.rl.envs import Env, replicate
from pinfactory.rl.evaluate import EpisodeResults, EpisodeState, episode_limit, reset_and_run
from pinfactory.rl.meta import TaskFamily
from pinfactory.rl.normalise import Moments, scale_returns, start_scale
from pinfactory.rl.optimise import OPTIMISER, learn_batches
from pinfactory.rl.policy import ActionSample, apply_experts, sample_action
from pinfactory.rl.ppo import clipped_surrogate
from pinfactory.rl.rollout import RolloutState, Trajectory, rollout, uniforms
from pinfactory.rl.values import Critics, Experience, compute_advantages

from .rl_base import TaskBaseline

CRITIC_STEPS = 8


class GradientState(eqx.Module):
    """What all tasks share. The first critic is for θ, the second for θ'."""

    learned: State[FamilyExpert]
    learned_critics: State[Critics]
    observations: Moments
    scale: UtilityScale
    actions: Actions

    @property
    def policy(self) -> FamilyExpert:
        """θ."""
        return self.learned.model


class Info(NamedTuple):
    """Mean reward per step before and after the inner step."""

    reward_before: Float[Array, ""]
    reward_after: Float[Array, ""]


@describe(logs=LOGS)
@dataclass(kw_only=True, eq=False, repr=False)
class GradientAdaptation(TaskBaseline):
    """Common part of `MAMLPolicy` and `ProMP`.

    Parameters
    ----------
    family
        Tasks to learn from.
    hidden
        Hidden layers.
    inner_rate
        α.
    learning_rate
        Of Adam, for θ and the critics.
    outer_steps
        Gradient steps on every batch of experience.
    n_tasks, n_steps
        Tasks per iteration, and steps in each before and again after the inner step.
    gamma, gae_lambda, clip_range
        Discount, λ of the advantages, and range of ratios.
    kl_coef
        Price of KL(π_old ‖ π_θ) in the outer objective.
    {logs}
    """

    inner_rate: float = 0.1
    outer_steps: int = 5
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    kl_coef: float = 5e-4
    # Whether objectives have probability ratios.
    _ratios: ClassVar[bool] = True

    def _build(self) -> tuple["GradientLearner", GradientState]:
        check.integer("outer_steps", self.outer_steps, 1)
        for name in ("inner_rate", "clip_range", "kl_coef"):
            check.number(name, getattr(self, name), 0.0)
        for name in ("gamma", "gae_lambda"):
            check.number(name, getattr(self, name), 0.0, 1.0)
        numbers = (self.inner_rate, self.gamma, self.gae_lambda, self.clip_range, self.kl_coef)
        learner = GradientLearner(
            self.family.env,
            self._ratios,
            self.outer_steps,
            self.n_steps,
            *map(jnp.float32, numbers),
        )
        return learner, learner.init(self.hidden, self.learning_rate, jax.random.key(self.seed))

    def _data(self, run: Run) -> Any:
        return self.family.draw(self._random, self.n_tasks)

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken, before and after the inner steps."""
        return 2 * super().num_timesteps

    @with_library_settings
    def evaluate(
        self, tasks: TaskFamily | None = None, *, n_tasks: int = 256, steps: int = 1, seed: int = 0
    ) -> EpisodeResults:
        """Play one deterministic episode in each of `n_tasks` new tasks.

        `steps` inner steps come before it, each on `n_steps` steps of experience in its task.
        """
        family, params = self._new_tasks(tasks, n_tasks, seed)
        check.integer("steps", steps, 0)
        keys = jax.random.split(jax.random.key(seed), steps + 1)
        state = self.state_
        policies = _copies(state.policy, n_tasks)
        for key in keys[1:]:
            policies = _adapt_all(self._learner, state, key, params, policies)
        limit = episode_limit(family.env)
        return _play(family.env, state, keys[0], params, policies, limit).on_host()


@dataclass(kw_only=True, eq=False, repr=False)
class MAMLPolicy(GradientAdaptation):
    """Model-agnostic meta-learning with the policy gradient (Finn et al. 2017).

    The outer step is Adam's on the policy gradient, where the original has a trust region.
    """

    inner_rate: float = 0.5
    learning_rate: float = 1e-2
    outer_steps: int = 1
    _ratios: ClassVar[bool] = False


class ProMP(GradientAdaptation):
    """Proximal meta-policy search (Rothfuss et al. 2019)."""


class GradientLearner(eqx.Module):
    """A learner for `pinfactory.core.training.train`: inner and outer steps; a batch is tasks."""

    env: Env
    ratios: bool = eqx.field(static=True)
    outer_steps: int = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)
    inner_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    gae_lambda: Float[Array, ""]
    clip_range: Float[Array, ""]
    kl_coef: Float[Array, ""]

    def step(
        self, key: Key[Array, ""], state: GradientState, tasks: PyTree
    ) -> tuple[GradientState, Info]:
        """Take one iteration of meta-learning."""
        first_key, second_key = jax.random.split(key)
        n = jax.tree.leaves(tasks)[0].shape[0]
        raw = self.gather(first_key, state, tasks, _copies(state.policy, n))
        scaling = scale_returns(
            state.scale, raw.reward, raw.done, jnp.zeros(n), self.gamma, raw.weight
        )
        state = eqx.tree_at(lambda s: s.scale, state, scaling.scale)
        before = self.experience(state, raw, 0)
        adapted = eqx.filter_vmap(self.adapt, in_axes=(None, 1))(state.policy, before)
        raw_after = self.gather(second_key, state, tasks, adapted)
        after = self.experience(state, raw_after, 1)

        learned, critics = (
            learn_batches(learner, key, part, (before, after), n_steps)[0]
            for learner, part, n_steps in (
                (Learner(self.loss, OPTIMISER), state.learned, self.outer_steps),
                (Learner(critic_loss, OPTIMISER), state.learned_critics, CRITIC_STEPS),
            )
        )
        seen = state.observations.update(raw.observation).update(raw_after.observation)
        new = GradientState(learned, critics, seen, scaling.scale, state.actions)
        return new, Info(jnp.mean(raw.reward), jnp.mean(raw_after.reward))

    def init(
        self, hidden: tuple[int, ...], learning_rate: float, key: Key[Array, ""]
    ) -> GradientState:
        """Return the state before the first iteration."""
        n_inputs, actions = len(self.env.observation_space.low), env_actions(self.env.action_space)
        policy_key, critic_key = jax.random.split(key)
        network = mlp(n_inputs, actions.n_outputs, hidden, relu, key=policy_key)
        critics = Critics.build(critic_key, 2, lambda key: mlp(n_inputs, 1, hidden, relu, key=key))
        return GradientState(
            Learner(self.loss, OPTIMISER).init(
                FamilyExpert(network, actions), learning_rate=learning_rate
            ),
            Learner(critic_loss, OPTIMISER).init(critics, learning_rate=learning_rate),
            Moments.start(n_inputs),
            start_scale(),
            actions,
        )

    def gather(
        self, key: Key[Array, ""], state: GradientState, tasks: PyTree, policies: PyTree
    ) -> Trajectory:
        """Reset all tasks and let each one's policy act in it."""
        reset_key, env_key, noise_key = jax.random.split(key, 3)
        start = RolloutState.start(self.env, reset_key, tasks, None)
        actions = state.actions
        noise = uniforms(noise_key, (self.n_steps, len(start.starts), actions.n_noise))

        def act(
            x: Array, starts: Array, policy_state: None, uniform: Array
        ) -> tuple[None, ActionSample]:
            answer = apply_experts(policies, state.observations(x))
            return None, sample_action(actions, answer, uniform)

        return rollout(
            self.env, env_key, tasks, start, act, lambda s: actions.to_env(s.action), noise
        )[1]

    def experience(self, state: GradientState, trajectory: Trajectory, critic: int) -> Experience:
        """Return experience with advantages, normalised over all tasks."""
        x = state.observations(trajectory.observation)
        next_x = state.observations(trajectory.next_observation)
        value, next_value = (
            _value(state.learned_critics.model, states)[..., critic] for states in (x, next_x)
        )
        done = trajectory.done.at[-1].set(True)
        advantage = compute_advantages(
            state.scale(trajectory.reward), value, next_value,
            trajectory.terminated, done, self.gamma, self.gae_lambda,
        )  # fmt: skip
        unit = (advantage - jnp.mean(advantage)) / (jnp.std(advantage) + 1e-8)
        return Experience(x, trajectory.decision, unit, value + advantage)

    def adapt(self, policy: FamilyExpert, own: Experience) -> FamilyExpert:
        """Take the inner step on the experience in one task."""

        def gain(policy: FamilyExpert) -> Float[Array, ""]:
            log_prob = jax.vmap(policy)(own.x).log_prob(own.sample.action)
            if self.ratios:
                log_prob = jnp.exp(log_prob - own.sample.log_prob)
            return jnp.mean(log_prob * own.advantage)

        gradient = eqx.filter_grad(gain)(policy)
        return eqx.apply_updates(policy, jax.tree.map(lambda g: self.inner_rate * g, gradient))

    def loss(
        self,
        policy: FamilyExpert,
        state: State,
        batch: tuple[Experience, Experience],
        key: Key[Array, ""],
    ) -> tuple[Float[Array, ""], tuple[None, None]]:
        """Return minus the outer objective, for `pinfactory.core.learning.Learner`."""

        def one(before: Experience, after: Experience) -> Float[Array, ""]:
            adapted = self.adapt(policy, before)
            log_prob = jax.vmap(adapted)(after.x).log_prob(after.sample.action)
            if not self.ratios:
                return -jnp.mean(log_prob * after.advantage)
            gain = clipped_surrogate(
                log_prob, after.sample.log_prob, after.advantage, self.clip_range
            )
            divergence = jnp.mean(before.sample.answer.kl(jax.vmap(policy)(before.x)))
            return self.kl_coef * divergence - jnp.mean(gain)

        return jnp.mean(jax.vmap(one, in_axes=1)(*batch)), (None, None)


def critic_loss(
    critics: Critics,
    state: State,
    batch: tuple[Experience, Experience],
    key: Key[Array, ""],
) -> tuple[Float[Array, ""], tuple[None, None]]:
    """Return Huber's loss of both critics."""
    errors = [
        jnp.mean(optax.huber_loss(_value(critics, e.x)[..., i], e.target))
        for i, e in enumerate(batch)
    ]
    return errors[0] + errors[1], (None, None)


@compiled_fully
def _adapt_all(
    learner: GradientLearner,
    state: GradientState,
    key: Key[Array, ""],
    tasks: PyTree,
    policies: FamilyExpert,
) -> FamilyExpert:
    """Gather experience with every task's policy and take an inner step with it."""
    own = learner.experience(state, learner.gather(key, state, tasks, policies), 0)
    return eqx.filter_vmap(learner.adapt, in_axes=(eqx.if_array(0), 1))(policies, own)


@compiled_fully
def _play(
    env: Env,
    state: GradientState,
    key: Key[Array, ""],
    tasks: PyTree,
    policies: PyTree,
    limit: Array,
) -> EpisodeResults:
    """Play one deterministic episode in each task."""

    def act(key: Array, now: EpisodeState) -> tuple[Array, None]:
        answer = apply_experts(policies, state.observations(now.observation))
        return state.actions.to_env(state.actions.mode(answer)), None

    return reset_and_run(env, key, tasks, None, act, limit)


def _value(critics: Critics, x: Float[Array, "t n o"]) -> Float[Array, "t n c"]:
    return critics(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)


def _copies(policy: FamilyExpert, n: int) -> FamilyExpert:
    """Return n copies of a policy, along a leading axis."""
    arrays, static = eqx.partition(policy, eqx.is_array)
    return eqx.combine(replicate(arrays, n), static)
