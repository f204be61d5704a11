"""Steps for `pinfactory.core.training.train`: acting and learning, or learning alone."""

import equinox as eqx
import jax
from jaxtyping import Array, Key, PyTree

from . import envs
from .policy import HierarchicalAction, n_noise
from .ppo import PPO, Info
from .rollout import EpisodeStatistics, RolloutState, Trajectory, rollout, uniforms
from .state import AgentState

State = tuple[AgentState, RolloutState]


class OnPolicyLearner(eqx.Module):
    """A step acts for `n_steps` steps in all environments, then learns from them.

    The state of the environments is part of the state, so that a resumed run goes on as if it had
    never stopped; the data are the parameters of the environments.
    """

    env: envs.Env
    ppo: PPO
    n_steps: int = eqx.field(static=True)

    def step(self, key: Key[Array, ""], state: State, params: PyTree) -> tuple[State, Info]:
        """Act for `n_steps` steps in every environment, and learn."""
        agent, environments = state
        act_key, learn_key = jax.random.split(key)
        environments, trajectory = self.act(act_key, agent, environments, params)
        agent, info = self.ppo.update(learn_key, agent, trajectory, environments.statistics)
        return (agent, environments), info

    def act(
        self, key: Key[Array, ""], agent: AgentState, environments: RolloutState, params: PyTree
    ) -> tuple[RolloutState, Trajectory]:
        """Return the environments after `n_steps` steps, and what happened."""
        env_key, noise_key = jax.random.split(key)
        actions = agent.policy.actions
        n_envs = len(environments.starts)
        noise = uniforms(noise_key, (self.n_steps, n_envs, n_noise(actions)))

        def to_env(decision: HierarchicalAction) -> Array:
            return actions.to_env(decision.action)

        return rollout(self.env, env_key, params, environments, agent.policy.act, to_env, noise)


class UpdateLearner(eqx.Module):
    """A step learns from a trajectory that was made elsewhere."""

    ppo: PPO

    def step(
        self,
        key: Key[Array, ""],
        agent: AgentState,
        data: tuple[Trajectory, EpisodeStatistics],
    ) -> tuple[AgentState, Info]:
        """Learn from the trajectory."""
        return self.ppo.update(key, agent, *data)
