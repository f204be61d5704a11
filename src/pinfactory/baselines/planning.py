"""A model of the environment, how it adapts to recent transitions, and planning (MPPI)."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from pinfactory.networks import Network
from pinfactory.rl.envs import Box, Env
from pinfactory.rl.normalise import Moments


class Model(eqx.Module):
    """A network of normalised inputs and outputs: (s, a) ↦ (s′ − s, r)."""

    network: Network
    inputs: Moments
    outputs: Moments

    def __call__(self, network: Network, x: Float[Array, " i"]) -> Float[Array, " q"]:
        """Return changes and reward in their own units, by an adapted network."""
        deviation = jnp.sqrt(jnp.maximum(self.outputs.variance, 1e-8))
        return self.outputs.mean + deviation * network(self.inputs(x))


class PlannerState(NamedTuple):
    """Of each of n episodes the latest transitions, the plan, and the last step."""

    x: Float[Array, "n k i"]
    change: Float[Array, "n k o"]
    plan: Float[Array, "n h a"]
    observation: Float[Array, "n o"]
    action: Float[Array, "n a"]
    steps: Float[Array, " n"]


class Planner(eqx.Module):
    """How a model adapts and plans."""

    env: Env
    n_steps: int = eqx.field(static=True)
    window: int = eqx.field(static=True)
    horizon: int = eqx.field(static=True)
    plans: int = eqx.field(static=True)
    inner_rate: Float[Array, ""]
    temperature: Float[Array, ""]

    @property
    def n_noise(self) -> int:
        """Uniform numbers that one decision needs."""
        return self.plans * self.horizon * len(self.space.low)

    @property
    def space(self) -> Box:
        """The actions."""
        space = self.env.action_space
        assert isinstance(space, Box)
        return space

    def initial_state(self, n: int) -> PlannerState:
        """Return the state of n episodes before their first step."""
        o, a = len(self.env.observation_space.low), len(self.space.low)
        return PlannerState(
            jnp.zeros((n, self.window, o + a)),
            jnp.zeros((n, self.window, o)),
            jnp.zeros((n, self.horizon, a)),
            jnp.zeros((n, o)),
            jnp.zeros((n, a)),
            jnp.zeros(n),
        )

    def adapt(
        self,
        model: Model,
        x: Float[Array, "k i"],
        y: Float[Array, "k q"],
        known: Float[Array, " k"],
    ) -> Network:
        """Take the inner step on the transitions that are known (weight one)."""

        def error(network: Network) -> Float[Array, ""]:
            errors = jax.vmap(network)(model.inputs(x)) - model.outputs(y)
            # Only changes of the observation: rewards are not observed while acting.
            squares = jnp.mean(errors[:, :-1] ** 2, axis=-1)
            return jnp.sum(known * squares) / jnp.maximum(jnp.sum(known), 1.0)

        gradient = eqx.filter_grad(error)(model.network)
        return eqx.apply_updates(
            model.network, jax.tree.map(lambda g: -self.inner_rate * g, gradient)
        )

    def act(
        self,
        model: Model,
        observation: Float[Array, "n o"],
        starts: Bool[Array, " n"],
        state: PlannerState,
        uniform: Float[Array, "n k"],
        adapting: Bool[Array, ""],
    ) -> tuple[PlannerState, Float[Array, "n a"]]:
        """Store the last step, adapt, plan, and return the first action of the plan."""
        starts = starts | (state.steps == 0)

        def reset(initial: Array, old: Array) -> Array:
            return jnp.where(starts.reshape(-1, *(1,) * (old.ndim - 1)), initial, old)

        state = PlannerState(*map(reset, self.initial_state(len(starts)), state))
        last = jnp.concatenate([state.observation, state.action], axis=-1)
        x = jnp.concatenate([state.x[:, 1:], last[:, None]], axis=1)
        change = jnp.concatenate(
            [state.change[:, 1:], (observation - state.observation)[:, None]], axis=1
        )
        known = jnp.arange(self.window) >= self.window - state.steps[:, None]
        known = known & adapting

        def one(
            x: Array, change: Array, known: Array, plan: Array, observation: Array, noise: Array
        ) -> Array:
            y = jnp.concatenate([change, jnp.zeros((self.window, 1))], axis=-1)
            network = self.adapt(model, x, y, known.astype(float))
            return self._plan(model, network, plan, observation, noise)

        plan = jax.vmap(one)(x, change, known, state.plan, observation, uniform)
        later = jnp.concatenate([plan[:, 1:], jnp.zeros_like(plan[:, :1])], axis=1)
        new = PlannerState(x, change, later, observation, plan[:, 0], state.steps + 1.0)
        return new, plan[:, 0]

    def _plan(
        self, model: Model, network: Network, plan: Array, observation: Array, noise: Array
    ) -> Float[Array, "h a"]:
        low, high = np.array(self.space.low, np.float32), np.array(self.space.high, np.float32)
        shape = (self.plans, self.horizon, len(low))
        spread = 0.25 * (high - low) * jax.scipy.special.ndtri(noise.reshape(shape))
        plans = jnp.clip(plan + spread, low, high)

        def step(states: Array, actions: Array) -> tuple[Array, Array]:
            outcome = jax.vmap(lambda x: model(network, x))(
                jnp.concatenate([states, actions], axis=-1)
            )
            return states + outcome[:, :-1], outcome[:, -1]

        start = jnp.broadcast_to(observation, (self.plans, len(observation)))
        _, rewards = jax.lax.scan(step, start, jnp.swapaxes(plans, 0, 1))
        returns = jnp.sum(rewards, axis=0)
        unit = jnp.std(returns) + 1e-6
        weights = jax.nn.softmax((returns - jnp.max(returns)) / (self.temperature * unit))
        return jnp.tensordot(weights, plans, axes=1)
