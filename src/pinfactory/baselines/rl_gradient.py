"""One policy that a gradient step adapts to a task: MAML's policy gradient, and ProMP.

Both start every task with the same parameters θ, gather experience, take a step

    θ' = θ + α ∇ E[advantage under θ]

and are judged by the experience that θ' gathers. MAML (Finn et al. 2017) differentiates the plain
policy gradient through that step. ProMP (Rothfuss et al. 2019) writes the inner objective with
probability ratios, whose second derivatives are those of the expected return, clips the outer
ratios as PPO does, and keeps θ near the policy that gathered the experience.

Networks, observations, rewards' scale and experience per task are those of
`pinfactory.rl.meta.MetaSpecialistAgent`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree
from tqdm.auto import trange

from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.core.resources import UtilityScale
from pinfactory.networks import mlp, relu
from pinfactory.rl._actions import Actions, native_actions
from pinfactory.rl._advantages import advantages
from pinfactory.rl._mind import OPTIMISER, Critics
from pinfactory.rl._normalise import Moments, discounted
from pinfactory.rl._rollout import Tally, Trajectory, World, rollout, uniforms
from pinfactory.rl._update import clipped_gain
from pinfactory.rl.envs import Env, reset_all
from pinfactory.rl.meta._families import TaskFamily
from pinfactory.rl.meta._play import finish, start_episodes
from pinfactory.rl.meta._policy import Deed, ask

CRITIC_STEPS = 8


class Knowledge(eqx.Module):
    """What all tasks share. The first critic is for θ, the second for θ'."""

    policy: FamilyExpert
    critics: Critics
    observations: Moments
    scale: UtilityScale
    actions: Actions
    optimisers: tuple[optax.OptState, ...]


class Experience(NamedTuple):
    """Steps of one policy in n tasks, and how much better each was than expected."""

    x: Float[Array, "t n o"]
    deed: Deed
    advantage: Float[Array, "t n"]
    target: Float[Array, "t n"]


class GradientAdaptation:
    """Common part of `MAMLPolicy` and `ProMP`.

    Parameters
    ----------
    family
        Tasks to learn from.
    inner_rate
        α.
    learning_rate
        Of Adam, for θ and the critics.
    outer_steps
        Gradient steps on every batch of experience.
    n_tasks, n_steps
        Tasks per iteration, and steps in each before and again after the inner step.
    gamma, gae_lambda, clip
        Discount, trace of the advantages, and range of ratios.
    penalty
        Price of KL(π_old ‖ π_θ) in the outer objective.
    hidden
        Hidden layers.
    seed
        Of everything random.
    """

    ratios: bool

    def __init__(
        self,
        family: TaskFamily,
        *,
        inner_rate: float = 0.1,
        learning_rate: float = 1e-3,
        outer_steps: int = 5,
        n_tasks: int = 64,
        n_steps: int = 128,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip: float = 0.2,
        penalty: float = 5e-4,
        hidden: tuple[int, ...] = (64, 64),
        seed: int = 0,
    ) -> None:
        self.family, self.n_tasks, self.n_steps, self.seed = family, n_tasks, n_steps, seed
        self._rule = Rule(
            family.env, self.ratios, outer_steps, n_steps,
            *map(jnp.float32, (inner_rate, learning_rate, gamma, gae_lambda, clip, penalty)),
        )  # fmt: skip
        self._knowledge = _start(family.env, hidden, jax.random.key(seed))
        self._random = np.random.default_rng(seed)
        self._iterations = 0

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return self._iterations * 2 * self.n_tasks * self.n_steps

    def learn(self, iterations: int, *, progress_bar: bool = False) -> "GradientAdaptation":
        """Meta-learn for so many more iterations."""
        name = type(self).__name__
        for _ in trange(iterations, desc=name, unit=" iterations", disable=not progress_bar):
            tasks = self.family.draw(self._random, self.n_tasks)
            key = jax.random.fold_in(jax.random.key(self.seed), self._iterations)
            self._knowledge = _improve(self._rule, self._knowledge, key, tasks)
            self._iterations += 1
        return self

    def evaluate(
        self, tasks: TaskFamily | None = None, *, n_tasks: int = 256, steps: int = 1, seed: int = 0
    ) -> np.ndarray:
        """Return the returns of one deterministic episode in each of `n_tasks` new tasks.

        `steps` inner steps come before it, each on `n_steps` steps of experience in its task.
        """
        family = self.family if tasks is None else tasks
        params = family.draw(np.random.default_rng([self.seed, 1, seed]), n_tasks)
        keys = jax.random.split(jax.random.key(seed), steps + 1)
        policies = _spread(self._knowledge.policy, n_tasks)
        for key in keys[1:]:
            policies = _adapt_all(self._rule, self._knowledge, key, params, policies)
        limit = jnp.asarray(family.env.max_steps)
        returns = _play(family.env, self._knowledge, keys[0], params, policies, limit)
        return np.asarray(returns)


class MAMLPolicy(GradientAdaptation):
    """Model-agnostic meta-learning with the policy gradient (Finn et al. 2017).

    The outer step is Adam's on the policy gradient, where the original has a trust region.
    """

    ratios = False

    def __init__(
        self,
        family: TaskFamily,
        *,
        inner_rate: float = 0.5,
        learning_rate: float = 1e-2,
        outer_steps: int = 1,
        **settings: Any,
    ) -> None:
        super().__init__(
            family,
            inner_rate=inner_rate,
            learning_rate=learning_rate,
            outer_steps=outer_steps,
            **settings,
        )


class ProMP(GradientAdaptation):
    """Proximal meta-policy search (Rothfuss et al. 2019)."""

    ratios = True


class Rule(eqx.Module):
    """How experience is turned into steps, inner and outer."""

    env: Env
    ratios: bool = eqx.field(static=True)
    outer_steps: int = eqx.field(static=True)
    n_steps: int = eqx.field(static=True)
    inner_rate: Float[Array, ""]
    learning_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    trace: Float[Array, ""]
    clip: Float[Array, ""]
    penalty: Float[Array, ""]

    def gather(
        self, key: Key[Array, ""], known: Knowledge, tasks: PyTree, policies: PyTree
    ) -> Trajectory:
        """Reset all tasks and let each one's policy act in it."""
        reset_key, env_key, noise_key = jax.random.split(key, 3)
        states, observation = reset_all(self.env, reset_key, tasks)
        n = len(observation)
        world = World(states, observation, jnp.ones(n, bool), None, Tally.start(n))
        actions = known.actions
        noise = uniforms(noise_key, (self.n_steps, n, actions.n_noise))

        def act(x: Array, fresh: Array, memory: None, uniform: Array) -> tuple[None, Deed]:
            answer = ask(policies, known.observations(x))
            action = actions.draw(answer, uniform)
            return None, Deed(action, answer.log_prob(action), answer)

        def to_env(deed: Deed) -> Array:
            return actions.to_env(deed.action)

        return rollout(self.env, env_key, tasks, world, act, to_env, noise)[1]

    def appraise(self, known: Knowledge, trajectory: Trajectory, critic: int) -> Experience:
        """Return experience with advantages, normalised over all tasks."""
        x = known.observations(trajectory.observation)
        after = known.observations(trajectory.next_observation)
        value, future = (_value(known.critics, states)[..., critic] for states in (x, after))
        done = trajectory.done.at[-1].set(True)
        gained = advantages(
            known.scale(trajectory.reward), value, future,
            trajectory.terminated, done, self.gamma, self.trace,
        )  # fmt: skip
        unit = (gained - jnp.mean(gained)) / (jnp.std(gained) + 1e-8)
        return Experience(x, trajectory.choice, unit, value + gained)

    def adapt(self, policy: FamilyExpert, own: Experience) -> FamilyExpert:
        """Take the inner step on the experience in one task."""

        def gain(policy: FamilyExpert) -> Float[Array, ""]:
            log_prob = jax.vmap(policy)(own.x).log_prob(own.deed.action)
            if self.ratios:
                log_prob = jnp.exp(log_prob - own.deed.log_prob)
            return jnp.mean(log_prob * own.advantage)

        uphill = eqx.filter_grad(gain)(policy)
        return eqx.apply_updates(policy, jax.tree.map(lambda g: self.inner_rate * g, uphill))

    def loss(self, policy: FamilyExpert, before: Experience, after: Experience) -> Float[Array, ""]:
        """Return minus the outer objective."""

        def one(before: Experience, after: Experience) -> Float[Array, ""]:
            adapted = self.adapt(policy, before)
            log_prob = jax.vmap(adapted)(after.x).log_prob(after.deed.action)
            if not self.ratios:
                return -jnp.mean(log_prob * after.advantage)
            gain = clipped_gain(log_prob, after.deed.log_prob, after.advantage, self.clip)
            moved = jnp.mean(before.deed.answer.kl(jax.vmap(policy)(before.x)))
            return self.penalty * moved - jnp.mean(gain)

        return jnp.mean(jax.vmap(one, in_axes=1)(before, after))


@eqx.filter_jit
def _improve(rule: Rule, known: Knowledge, key: Key[Array, ""], tasks: PyTree) -> Knowledge:
    """Take one iteration of meta-learning."""
    first_key, second_key = jax.random.split(key)
    n = jax.tree.leaves(tasks)[0].shape[0]
    raw = rule.gather(first_key, known, tasks, _spread(known.policy, n))
    _, returns = discounted(raw.reward, raw.done, jnp.zeros(n), rule.gamma)
    scale = known.scale.update(returns, jnp.full(returns.shape, 1.0 / returns.size))
    known = eqx.tree_at(lambda k: k.scale, known, scale)
    before = rule.appraise(known, raw, 0)
    adapted = _adapted(rule, known.policy, before)
    raw_after = rule.gather(second_key, known, tasks, adapted)
    after = rule.appraise(known, raw_after, 1)

    policy, of_policy = _descend(
        lambda policy: rule.loss(policy, before, after),
        known.policy, known.optimisers[0], rule.learning_rate, rule.outer_steps,
    )  # fmt: skip

    def critic_loss(critics: Critics) -> Float[Array, ""]:
        errors = [
            jnp.mean(optax.huber_loss(_value(critics, e.x)[..., i], e.target))
            for i, e in enumerate((before, after))
        ]
        return errors[0] + errors[1]

    critics, of_critics = _descend(
        critic_loss, known.critics, known.optimisers[1], rule.learning_rate, CRITIC_STEPS
    )
    seen = known.observations.update(raw.observation).update(raw_after.observation)
    return Knowledge(policy, critics, seen, scale, known.actions, (of_policy, of_critics))


def _descend(
    loss: Any, part: PyTree, optimiser: optax.OptState, rate: Float[Array, ""], steps: int
) -> tuple[Any, optax.OptState]:
    arrays, static = eqx.partition(part, eqx.is_inexact_array)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        arrays, optimiser = carry
        gradient = jax.grad(lambda a: loss(eqx.combine(a, static)))(arrays)
        direction, optimiser = OPTIMISER.update(gradient, optimiser)
        return (jax.tree.map(lambda w, d: w - rate * d, arrays, direction), optimiser), None

    (arrays, optimiser), _ = jax.lax.scan(step, (arrays, optimiser), length=steps)
    return eqx.combine(arrays, static), optimiser


def _adapted(rule: Rule, policy: FamilyExpert, before: Experience) -> FamilyExpert:
    return eqx.filter_vmap(rule.adapt, in_axes=(None, 1))(policy, before)


@eqx.filter_jit
def _adapt_all(
    rule: Rule, known: Knowledge, key: Key[Array, ""], tasks: PyTree, policies: FamilyExpert
) -> FamilyExpert:
    """Gather experience with every task's policy and take an inner step with it."""
    own = rule.appraise(known, rule.gather(key, known, tasks, policies), 0)
    return eqx.filter_vmap(rule.adapt, in_axes=(eqx.if_array(0), 1))(policies, own)


@eqx.filter_jit
def _play(
    env: Env, known: Knowledge, key: Key[Array, ""], tasks: PyTree, policies: PyTree, limit: Array
) -> Float[Array, " n"]:
    """Return the returns of one deterministic episode in each task."""
    reset_key, key = jax.random.split(key)

    def act(key: Array, x: Array, over: Array, memory: None) -> tuple[Array, None]:
        actions = known.actions
        return actions.to_env(actions.mode(ask(policies, known.observations(x)))), None

    start = start_episodes(env, reset_key, tasks, None)
    return finish(env, key, tasks, start, act, limit).total


def _value(critics: Critics, x: Float[Array, "t n o"]) -> Float[Array, "t n c"]:
    return critics(x.reshape(-1, x.shape[-1])).reshape(*x.shape[:2], -1)


def _spread(policy: FamilyExpert, n: int) -> FamilyExpert:
    """Return n copies of a policy, side by side."""
    return jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (n, *leaf.shape)) if eqx.is_array(leaf) else leaf,
        policy,
    )


def _start(env: Env, hidden: tuple[int, ...], key: Key[Array, ""]) -> Knowledge:
    n_inputs, actions = len(env.observation_space.low), native_actions(env.action_space)
    policy_key, critic_key = jax.random.split(key)
    policy = FamilyExpert(mlp(n_inputs, actions.n_outputs, hidden, relu, key=policy_key), actions)
    critics = Critics.build(critic_key, 2, lambda key: mlp(n_inputs, 1, hidden, relu, key=key))
    optimisers = tuple(
        OPTIMISER.init(eqx.filter(part, eqx.is_inexact_array)) for part in (policy, critics)
    )
    scale = UtilityScale(momentum=jnp.asarray(0.99))
    return Knowledge(policy, critics, Moments.start(n_inputs), scale, actions, optimisers)
