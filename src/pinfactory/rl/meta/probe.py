"""The first steps in a new task, before there is anything to choose an expert by."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from pinfactory.rl.actions import Actions, BoxActions, DiscreteActions
from pinfactory.rl.envs import Discrete, Env
from pinfactory.rl.rollout import RolloutState, Trajectory

PROBES = ("shake", "noise", "prior", "expert")


class Probe(eqx.Module):
    """How the first `length` steps are spent.

    - `"shake"`: small pushes in alternating directions, the same in every task. What differs
      between two responses is then the task alone, and the cart ends about where it began.
    - `"noise"`: small Gaussian actions.
    - `"prior"`: at every step an expert drawn from p(m).
    - `"expert"`: one expert drawn from p(m) for all steps, as in the paper.

    `size` is the amplitude of the first two, as a fraction of the range of actions.
    """

    kind: str = eqx.field(static=True)
    length: int = eqx.field(static=True)
    size: float = eqx.field(static=True)

    @property
    def open_loop(self) -> bool:
        """Whether actions do not depend on observations."""
        return self.kind in ("shake", "noise")

    def plan(self, actions: Actions, uniform: Float[Array, "l n k"]) -> Shaped[Array, "l n ..."]:
        """Return the actions of a shake or of noise, as the environment takes them."""
        steps, n, _ = uniform.shape
        if isinstance(actions, DiscreteActions):
            turn = jnp.arange(steps, dtype=jnp.int32)[:, None] % actions.n
            drawn = jnp.floor(uniform[..., 0] * actions.n).astype(jnp.int32)
            chosen = drawn if self.kind == "noise" else jnp.broadcast_to(turn, (steps, n))
            return actions.to_env(chosen)
        assert isinstance(actions, BoxActions)
        low, high = np.array(actions.low, np.float32), np.array(actions.high, np.float32)
        # Every component alternates with a period of its own, so that effects can be told apart.
        phase = (np.arange(steps)[:, None] >> np.arange(len(low))) & 1
        push = jnp.broadcast_to((1.0 - 2.0 * phase)[:, None], (steps, n, len(low)))
        if self.kind == "noise":
            push = jax.scipy.special.ndtri(uniform)
        return jnp.asarray(0.5 * (low + high) + 0.5 * (high - low) * self.size * push)


class ProbeResult(NamedTuple):
    """The state of n environments after the probe, and what it found.

    `transitions` holds (s, a, r, s′ − s) of every step; the change says the same as s′ itself, on
    a scale of its own.
    """

    environments: RolloutState
    transitions: Float[Array, "n l f"]
    trajectory: Trajectory


def transition_size(env: Env, actions: Actions) -> int:
    """Return how many numbers describe a transition."""
    n_action = 1 if isinstance(env.action_space, Discrete) else actions.n_noise
    return 2 * len(env.observation_space.low) + n_action + 1
