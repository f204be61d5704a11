"""A model that adapts online, and planning with it: GrBAL (Nagabandi et al. 2019).

A network predicts the change of the observation and the reward. It is meta-learned such that a
gradient step on the latest transitions of an episode,

    θ' = θ − α ∇ Σ ‖s′ − s − f_θ(s, a)‖²,

makes it predict the following ones. At every step of an episode the model is adapted so, and the
action comes from model predictive control: random plans around the last one, each weighted by the
exponential of the reward that the adapted model expects (MPPI, Williams et al. 2017).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key, PyTree

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.hierarchy import pick
from pinfactory.core.learning import Learner, State
from pinfactory.core.training import Run
from pinfactory.networks import mlp, relu
from pinfactory.rl.base import LOGS
from pinfactory.rl.envs import Box
from pinfactory.rl.evaluate import EpisodeResults, EpisodeState, episode_limit, reset_and_run
from pinfactory.rl.meta import TaskFamily
from pinfactory.rl.normalise import Moments
from pinfactory.rl.optimise import OPTIMISER, learn_batches
from pinfactory.rl.rollout import RolloutState, rollout, uniforms

from .planning import Model, Planner, PlannerState
from .rl_base import TaskBaseline

# Segments of experience in a minibatch.
BATCH_SIZE = 64


class ModelData(NamedTuple):
    """New transitions for the moments, and segments of old and new ones for gradient steps.

    `weight` is zero after the end of an episode.
    """

    x: Float[Array, "t n i"]
    y: Float[Array, "t n q"]
    segment_x: Float[Array | np.ndarray, "g b w i"]
    segment_y: Float[Array | np.ndarray, "g b w q"]
    weight: Float[Array | np.ndarray, "g b w"]


class Info(NamedTuple):
    """Mean squared error of the adapted model, in standard deviations."""

    error: Float[Array, ""]


@describe(logs=LOGS)
@dataclass(kw_only=True, eq=False, repr=False)
class GrBAL(TaskBaseline):
    """Gradient-based adaptive learner: a meta-learned model with predictive control.

    Parameters
    ----------
    family
        Tasks to learn from, with actions in a box.
    hidden
        Hidden layers.
    n_tasks, n_steps
        Tasks per iteration, and steps in each; all of them are kept.
    window
        Transitions that an inner step sees, and that it has to predict in training.
    inner_rate, learning_rate
        Of the inner step, and of Adam.
    horizon, plans, temperature
        Steps that are planned, plans that are tried, and how sharply the better ones count.
    gradient_steps
        Of meta-learning in every iteration.
    {logs}
    """

    n_tasks: int = 16
    window: int = 8
    inner_rate: float = 0.05
    horizon: int = 16
    plans: int = 64
    temperature: float = 0.2
    gradient_steps: int = 200

    def _build(self) -> tuple["ModelLearner", State]:
        for name in ("window", "horizon", "plans", "gradient_steps"):
            check.integer(name, getattr(self, name), 1)
        for name in ("inner_rate", "temperature"):
            check.number(name, getattr(self, name), 0.0, open_low=True)
        env, n_steps = self.family.env, self.n_steps
        if n_steps < 2 * self.window:
            raise ValueError(
                f"`n_steps` must be at least twice `window`, {self.window}, but got {n_steps}."
            )
        space = env.action_space
        if not isinstance(space, Box):
            raise ValueError(f"Actions must be in a box to plan with them, but got {space}.")
        self.planner = Planner(
            env, n_steps, self.window, self.horizon, self.plans,
            *map(jnp.float32, (self.inner_rate, self.temperature)),
        )  # fmt: skip
        o, a = len(env.observation_space.low), len(space.low)
        network = mlp(o + a, o + 1, self.hidden, relu, key=jax.random.key(self.seed))
        moments = (Moments.start(o + a), Moments.start(o + 1))
        # Inputs, outputs, and where episodes ended: time comes first, then all tasks so far.
        self._seen: tuple[np.ndarray, ...] = (
            np.zeros((n_steps, 0, o + a), np.float32),
            np.zeros((n_steps, 0, o + 1), np.float32),
            np.zeros((n_steps, 0), bool),
        )
        learner = ModelLearner(self.planner)
        return learner, learner.learner.init(network, moments, learning_rate=self.learning_rate)

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return self._seen[2].size

    @with_library_settings
    def evaluate(
        self,
        tasks: TaskFamily | None = None,
        *,
        n_tasks: int = 64,
        adapting: bool = True,
        seed: int = 0,
    ) -> EpisodeResults:
        """Play one episode in each of `n_tasks` new tasks."""
        family, params = self._new_tasks(tasks, n_tasks, seed)
        limit, key = episode_limit(family.env), jax.random.key(seed)
        model = _model(self.state_)
        return _play(self.planner, model, key, params, jnp.asarray(adapting), limit).on_host()

    def _data(self, run: Run) -> ModelData:
        """Plan in new tasks, and return what the model learns from next."""
        model = _model(pick(run.state, 0))
        key = jax.random.fold_in(jax.random.key(self.seed), self.num_timesteps)
        tasks = self.family.draw(self._random, self.n_tasks)
        at_random = jnp.asarray(self.num_timesteps == 0)
        new = _act(self.planner, model, key, tasks, at_random)
        both = zip(self._seen, new, strict=True)
        self._seen = tuple(np.concatenate(parts, axis=1) for parts in both)
        return ModelData(*new[:2], *self._segments())

    def _segments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw the segments of every gradient step."""
        x, y, done = self._seen
        shape, length = (self.gradient_steps, BATCH_SIZE, 1), 2 * self.planner.window
        first = self._random.integers(len(x) - length + 1, size=shape)
        task = self._random.integers(x.shape[1], size=shape)
        part = (first + np.arange(length), task)
        over = np.concatenate([np.zeros(shape, bool), done[part][..., :-1]], axis=-1)
        return x[part], y[part], (np.cumsum(over, axis=-1) == 0).astype(np.float32)


class ModelLearner(eqx.Module):
    """A learner for `pinfactory.core.training.train`: gradient steps through the inner one."""

    planner: Planner

    @property
    def learner(self) -> Learner:
        """What takes the gradient steps; its constraints are the moments."""
        return Learner(self.loss, OPTIMISER)

    def loss(
        self, network: Any, state: State, batch: tuple[Array, ...], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        """Return the error of the adapted model on the transitions that follow."""
        planner, window = self.planner, self.planner.window
        model = Model(network, *state.constraints)

        def one(x: Array, y: Array, weight: Array) -> Float[Array, ""]:
            adapted = planner.adapt(model, x[:window], y[:window], weight[:window])
            errors = jax.vmap(adapted)(model.inputs(x[window:])) - model.outputs(y[window:])
            return jnp.sum(weight[window:] * jnp.mean(errors**2, axis=-1)) / window

        error = jnp.mean(jax.vmap(one)(*batch))
        return error, (state.constraints, error)

    def step(self, key: Key[Array, ""], state: State, data: ModelData) -> tuple[State, Info]:
        """Take one gradient step for every batch of segments."""
        inputs, outputs = state.constraints
        moments = (inputs.update(data.x), outputs.update(data.y))
        state = eqx.tree_at(lambda s: s.constraints, state, moments)
        segments = (data.segment_x, data.segment_y, data.weight)
        state, errors = learn_batches(self.learner, key, state, segments)
        return state, Info(jnp.mean(errors))


def _model(state: State) -> Model:
    return Model(state.model, *state.constraints)


@compiled_fully
def _act(
    planner: Planner, model: Model, key: Key[Array, ""], tasks: PyTree, at_random: Bool[Array, ""]
) -> tuple[Array, Array, Array]:
    """Return inputs and outputs of the model for t steps of n tasks, and where episodes ended."""
    reset_key, env_key, noise_key = jax.random.split(key, 3)
    n = jax.tree.leaves(tasks)[0].shape[0]
    start = RolloutState.start(planner.env, reset_key, tasks, planner.initial_state(n))
    noise = uniforms(noise_key, (planner.n_steps, n, planner.n_noise))
    low, high = map(jnp.asarray, (planner.space.low, planner.space.high))

    def act(
        x: Array, starts: Array, state: PlannerState, uniform: Array
    ) -> tuple[PlannerState, Array]:
        state, action = planner.act(model, x, starts, state, uniform, ~at_random)
        random_action = low + (high - low) * uniform[:, : len(low)]
        action = jnp.where(at_random, random_action, action)
        return state._replace(action=action), action

    _, seen = rollout(planner.env, env_key, tasks, start, act, lambda a: a, noise)
    change = seen.next_observation - seen.observation
    return (
        jnp.concatenate([seen.observation, seen.decision], axis=-1),
        jnp.concatenate([change, seen.reward[..., None]], axis=-1),
        seen.done,
    )


@compiled_fully
def _play(
    planner: Planner,
    model: Model,
    key: Key[Array, ""],
    tasks: PyTree,
    adapting: Array,
    limit: Array,
) -> EpisodeResults:
    """Play one episode in each task."""
    n = jax.tree.leaves(tasks)[0].shape[0]

    def act(key: Array, now: EpisodeState) -> tuple[Array, PlannerState]:
        noise = uniforms(key, (n, planner.n_noise))
        none = jnp.zeros(n, bool)
        state, action = planner.act(model, now.observation, none, now.policy_state, noise, adapting)
        return action, state

    return reset_and_run(planner.env, key, tasks, planner.initial_state(n), act, limit)
