"""Acting and learning as one compiled step."""

from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from . import envs
from ._mind import Mind
from ._policy import n_noise
from ._rollout import Trajectory, World, rollout, uniforms
from ._update import Improver, Info


class Practice(eqx.Module):
    """A learner for `pinfactory.core.training.train`: a step acts, then learns from it.

    Its state is a mind and a world, so that a resumed run goes on as if it had never stopped; its
    data are the parameters of the environments.
    """

    env: envs.Env
    improver: Improver
    n_steps: int = eqx.field(static=True)

    def step(
        self, key: Key[Array, ""], state: tuple[Mind, World], params: PyTree
    ) -> tuple[tuple[Mind, World], Info]:
        """Act for `n_steps` steps in every environment, and learn."""
        mind, world = state
        act_key, learn_key = jax.random.split(key)
        world, trajectory = self.act(act_key, mind, world, params)
        mind, info = self.improver.improve(learn_key, mind, trajectory, world.tally)
        return (mind, world), info

    def act(
        self, key: Key[Array, ""], mind: Mind, world: World, params: PyTree
    ) -> tuple[World, Trajectory]:
        """Return where the environments are after `n_steps` steps, and what happened."""
        env_key, noise_key = jax.random.split(key)
        actions = mind.policy.actions
        n_envs = len(world.fresh)
        noise = uniforms(noise_key, (self.n_steps, n_envs, n_noise(actions)))

        def to_env(choice: Any) -> Array:
            return actions.to_env(choice.action)

        return rollout(self.env, env_key, params, world, mind.policy.act, to_env, noise)


class Study(eqx.Module):
    """A learner whose data are a trajectory that was made elsewhere, and its tally."""

    improver: Improver

    def step(
        self, key: Key[Array, ""], mind: Mind, data: tuple[Trajectory, Any]
    ) -> tuple[Mind, Info]:
        """Learn from the trajectory."""
        return self.improver.improve(key, mind, *data)
