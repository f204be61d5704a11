"""A decision process whose exact solution is known: four places on a ring, three moves."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pinfactory.core.exact import ProcessSolution, solve_process
from pinfactory.rl import SpecialistAgent, envs

ENDS = 0.1
START = (0.4, 0.3, 0.2, 0.1)
# Every place has a move that pays; a move leads so many places on, most of the time.
REWARD = np.array([[1.0, 0.3, 0.0], [0.0, 1.0, 0.3], [0.3, 0.0, 1.0], [0.9, 0.0, 0.7]])
AHEAD = np.stack([np.roll(np.eye(4), 1 + move, axis=1) for move in range(3)], axis=1)
TRANSITION = (1.0 - ENDS) * (0.5 * AHEAD + 0.125)


class RingParams(eqx.Module):
    scale: Float[Array, "..."] = envs.parameter(1.0)


class Place(NamedTuple):
    index: Int[Array, "..."]
    steps: Int[Array, "..."]


class Ring(envs.Env[RingParams]):
    """Observations are one-hot; `scale` multiplies all rewards."""

    max_steps: int | None = eqx.field(default=1000, static=True)

    @property
    def observation_space(self) -> envs.Box:
        return envs.Box((0.0,) * 4, (1.0,) * 4)

    @property
    def action_space(self) -> envs.Discrete:
        return envs.Discrete(3)

    @property
    def step_seconds(self) -> float:
        return 1.0

    def default_params(self) -> RingParams:
        return RingParams()

    def reset(self, key, params):
        index = jax.random.choice(key, 4, p=jnp.asarray(START))
        return Place(index, jnp.zeros((), jnp.int32)), jax.nn.one_hot(index, 4)

    def step(self, key, state, action, params):
        move_key, end_key = jax.random.split(key)
        chances = jnp.asarray(TRANSITION)[state.index, action] / (1.0 - ENDS)
        index = jax.random.choice(move_key, 4, p=chances)
        ended = jax.random.uniform(end_key) < ENDS
        reward = params.scale * jnp.asarray(REWARD)[state.index, action]
        steps = state.steps + 1
        truncated = self.out_of_time(steps) & ~ended
        place = Place(index, steps)
        return place, envs.Transition(jax.nn.one_hot(index, 4), reward, ended, truncated)


def ring_agent(n_experts: int, **settings: Any) -> SpecialistAgent:
    """Return an agent that can represent every policy: linear in one-hot observations."""
    defaults = {
        "gamma": 0.8,
        "gae_lambda": 0.9,
        "n_envs": 64,
        "n_steps": 8,
        "batch_size": 128,
        "n_epochs": 4,
        "learning_rate": 0.01,
        "selector_hidden": (),
        "critic_hidden": (16,),
        "momentum_selector": 0.95,
        "momentum_expert": 0.95,
        "units": "reward",
        "capacity": 2,
    }
    return SpecialistAgent(Ring(), n_experts, **defaults | settings)


def exact_ring(n_experts: int, beta_selector: float, beta_expert: float) -> ProcessSolution:
    """Return what an agent that averages over all visited states should find."""
    return solve_process(
        TRANSITION, REWARD, n_experts, beta_selector, beta_expert,
        gamma=0.8, start=START, average="visited",
    )  # fmt: skip


def policy(agent: SpecialistAgent) -> np.ndarray:
    """Return p(a|x) of the committee in every place."""
    return np.exp([agent.log_prob(np.eye(4), np.full(4, a)) for a in range(3)]).T


def exact_policy(solution: ProcessSolution) -> np.ndarray:
    """Return p(a|x) of the exact solution."""
    return np.einsum("xm,xmy->xy", solution.p_m_given_x, solution.p_y_given_x_m)
