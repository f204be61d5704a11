"""A model of the body that adapts online, and planning with it: GrBAL (Nagabandi et al. 2019).

A network predicts the change of the observation and the reward. It is meta-learned such that a
gradient step on the latest transitions of an episode,

    θ' = θ − α ∇ Σ ‖s′ − s − f_θ(s, a)‖²,

makes it predict the following ones. At every step of an episode the model is adapted so, and the
action comes from model predictive control: random plans around the last one, each weighted by the
exponential of the reward that the adapted model expects (MPPI, Williams et al. 2017).
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Key, PyTree
from tqdm.auto import trange

from pinfactory.networks import mlp, relu
from pinfactory.rl._mind import OPTIMISER
from pinfactory.rl._normalise import Moments
from pinfactory.rl._rollout import Tally, World, rollout, uniforms
from pinfactory.rl.envs import Box, reset_all
from pinfactory.rl.meta._families import TaskFamily
from pinfactory.rl.meta._play import finish, start_episodes

from ._planning import Model, Planner


class GrBAL:
    """Gradient-based adaptive learner: a meta-learned model with predictive control.

    Parameters
    ----------
    family
        Tasks to learn from, with actions in a box.
    n_tasks, n_steps
        Tasks per iteration, and steps in each; they are kept for ever.
    window
        Transitions that an inner step sees, and that it has to predict in training.
    inner_rate, learning_rate
        Of the inner step, and of Adam.
    horizon, plans, temperature
        Steps that are planned, plans that are tried, and how sharply the better ones count.
    gradient_steps
        Of meta-learning in every iteration.
    hidden
        Hidden layers.
    seed
        Of everything random.
    """

    def __init__(
        self,
        family: TaskFamily,
        *,
        n_tasks: int = 16,
        n_steps: int = 128,
        window: int = 8,
        inner_rate: float = 0.05,
        learning_rate: float = 1e-3,
        horizon: int = 16,
        plans: int = 64,
        temperature: float = 0.2,
        gradient_steps: int = 200,
        hidden: tuple[int, ...] = (64, 64),
        seed: int = 0,
    ) -> None:
        space = family.env.action_space
        if not isinstance(space, Box):
            raise ValueError(f"Actions must be in a box to plan with them, but got {space}.")
        self.family, self.n_tasks, self.n_steps, self.seed = family, n_tasks, n_steps, seed
        self.gradient_steps = gradient_steps
        self._planner = Planner(
            family.env, n_steps, window, horizon, plans,
            *map(jnp.float32, (inner_rate, learning_rate, temperature)),
        )  # fmt: skip
        o, a = len(family.env.observation_space.low), len(space.low)
        network = mlp(o + a, o + 1, hidden, relu, key=jax.random.key(seed))
        self._model = Model(network, Moments.start(o + a), Moments.start(o + 1))
        self._optimiser = OPTIMISER.init(eqx.filter(network, eqx.is_inexact_array))
        self._random = np.random.default_rng(seed)
        # Inputs, outputs, and where episodes ended: time comes first, then all tasks ever met.
        self._seen: tuple[np.ndarray, ...] = (
            np.zeros((n_steps, 0, o + a), np.float32),
            np.zeros((n_steps, 0, o + 1), np.float32),
            np.zeros((n_steps, 0), bool),
        )

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return self._seen[2].size

    def learn(self, iterations: int, *, progress_bar: bool = False) -> "GrBAL":
        """Gather experience by planning, and learn the model from all of it."""
        name = type(self).__name__
        for _ in trange(iterations, desc=name, unit=" iterations", disable=not progress_bar):
            key = jax.random.fold_in(jax.random.key(self.seed), self.num_timesteps)
            tasks = self.family.draw(self._random, self.n_tasks)
            at_random = jnp.asarray(self.num_timesteps == 0)
            x, y, done = _gather(self._planner, self._model, key, tasks, at_random)
            self._model = eqx.tree_at(
                lambda m: (m.inputs, m.outputs),
                self._model,
                (self._model.inputs.update(x), self._model.outputs.update(y)),
            )
            both = zip(self._seen, (x, y, done), strict=True)
            self._seen = tuple(np.concatenate(parts, axis=1) for parts in both)
            self._model, self._optimiser = _improve(
                self._planner, self._model, self._optimiser, *self._stretches()
            )
        return self

    def evaluate(
        self,
        tasks: TaskFamily | None = None,
        *,
        n_tasks: int = 64,
        adapting: bool = True,
        seed: int = 0,
    ) -> np.ndarray:
        """Return the returns of one episode in each of `n_tasks` new tasks."""
        family = self.family if tasks is None else tasks
        params = family.draw(np.random.default_rng([self.seed, 1, seed]), n_tasks)
        limit = jnp.asarray(family.env.max_steps)
        key = jax.random.key(seed)
        return np.asarray(
            _play(self._planner, self._model, key, params, jnp.asarray(adapting), limit)
        )

    def _stretches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw 64 stretches for every gradient step; weights are zero after an episode's end."""
        x, y, done = self._seen
        shape, length = (self.gradient_steps, 64, 1), 2 * self._planner.window
        first = self._random.integers(len(x) - length + 1, size=shape)
        task = self._random.integers(x.shape[1], size=shape)
        part = (first + np.arange(length), task)
        over = np.concatenate([np.zeros(shape, bool), done[part][..., :-1]], axis=-1)
        return x[part], y[part], (np.cumsum(over, axis=-1) == 0).astype(np.float32)


@eqx.filter_jit
def _gather(
    planner: Planner, model: Model, key: Key[Array, ""], tasks: PyTree, at_random: Bool[Array, ""]
) -> tuple[Array, Array, Array]:
    """Return inputs and outputs of the model for t steps of n tasks, and where episodes ended."""
    reset_key, env_key, noise_key = jax.random.split(key, 3)
    states, observation = reset_all(planner.env, reset_key, tasks)
    n = len(observation)
    world = World(states, observation, jnp.ones(n, bool), planner.blank(n), Tally.start(n))
    noise = uniforms(noise_key, (planner.n_steps, n, planner.n_noise))
    low, high = map(jnp.asarray, (planner._space.low, planner._space.high))

    def act(x: Array, fresh: Array, memory: Any, uniform: Array) -> tuple[Any, Array]:
        memory, action = planner.act(model, x, fresh, memory, uniform, ~at_random)
        anything = low + (high - low) * uniform[:, : len(low)]
        action = jnp.where(at_random, anything, action)
        return memory._replace(action=action), action

    _, seen = rollout(planner.env, env_key, tasks, world, act, lambda a: a, noise)
    change = seen.next_observation - seen.observation
    return (
        jnp.concatenate([seen.observation, seen.choice], axis=-1),
        jnp.concatenate([change, seen.reward[..., None]], axis=-1),
        seen.done,
    )


@eqx.filter_jit
def _improve(
    planner: Planner, model: Model, optimiser: optax.OptState, x: Any, y: Any, weight: Any
) -> tuple[Model, optax.OptState]:
    """Take one gradient step through the inner one for every batch of stretches."""
    arrays, static = eqx.partition(model.network, eqx.is_inexact_array)
    window = planner.window

    def loss(arrays: PyTree, x: Array, y: Array, weight: Array) -> Float[Array, ""]:
        network = eqx.combine(arrays, static)
        now = eqx.tree_at(lambda m: m.network, model, network)

        def one(x: Array, y: Array, weight: Array) -> Float[Array, ""]:
            adapted = planner.adapt(now, x[:window], y[:window], weight[:window])
            misses = jax.vmap(adapted)(model.inputs(x[window:])) - model.outputs(y[window:])
            return jnp.sum(weight[window:] * jnp.mean(misses**2, axis=-1)) / window

        return jnp.mean(jax.vmap(one)(x, y, weight))

    def step(carry: Any, batch: tuple[Array, Array, Array]) -> tuple[Any, None]:
        arrays, optimiser = carry
        gradient = jax.grad(loss)(arrays, *batch)
        direction, optimiser = OPTIMISER.update(gradient, optimiser)
        moved = jax.tree.map(lambda w, d: w - planner.learning_rate * d, arrays, direction)
        return (moved, optimiser), None

    (arrays, optimiser), _ = jax.lax.scan(step, (arrays, optimiser), (x, y, weight))
    return eqx.tree_at(lambda m: m.network, model, eqx.combine(arrays, static)), optimiser


@eqx.filter_jit
def _play(
    planner: Planner,
    model: Model,
    key: Key[Array, ""],
    tasks: PyTree,
    adapting: Array,
    limit: Array,
) -> Float[Array, " n"]:
    """Return the returns of one episode in each task."""
    reset_key, key = jax.random.split(key)
    n = jax.tree.leaves(tasks)[0].shape[0]

    def act(key: Array, x: Array, over: Array, memory: Any) -> tuple[Array, Any]:
        noise = uniforms(key, (n, planner.n_noise))
        memory, action = planner.act(model, x, jnp.zeros(n, bool), memory, noise, adapting)
        return action, memory

    start = start_episodes(planner.env, reset_key, tasks, planner.blank(n))
    return finish(planner.env, key, tasks, start, act, limit).total
