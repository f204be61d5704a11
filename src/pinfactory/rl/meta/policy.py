"""The policy in a new task: first a probe, then the expert that the selector chose."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key, PyTree, Shaped

from pinfactory.core.constraints import Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.rl.actions import Actions
from pinfactory.rl.envs import Env
from pinfactory.rl.multi_categorical import invert_cdf
from pinfactory.rl.normalise import Moments
from pinfactory.rl.policy import ActionSample, apply_experts, sample_action, take_expert
from pinfactory.rl.rollout import RolloutState, rollout, uniforms

from .probe import Probe, ProbeResult


class MetaPolicy(eqx.Module):
    """A recurrent selector over experts. All inputs are normalised."""

    hierarchy: Hierarchy
    priors: Priors
    observations: Moments
    transitions: Moments
    actions: Actions
    probe: Probe

    def select(self, transitions: Float[Array, "n l f"]) -> Categorical:
        """Return p(m|τ) for n probes."""
        return jax.vmap(self.hierarchy.select)(self.transitions(transitions))

    def run_probe(self, env: Env, key: Key[Array, ""], tasks: PyTree) -> ProbeResult:
        """Reset all tasks and probe them."""
        reset_key, noise_key, env_key = jax.random.split(key, 3)
        start = RolloutState.start(env, reset_key, tasks, jnp.asarray(0))
        n, steps = len(start.observation), self.probe.length
        noise = uniforms(noise_key, (steps, n, 1 + self.actions.n_noise))
        plan = self.plan(noise)

        def act(
            observation: Array, starts: Array, step: Array, uniform: Array
        ) -> tuple[Array, Array]:
            if self.probe.open_loop:
                return step + 1, plan[step]
            experts = take_expert(self.hierarchy.experts, plan[step])
            sample = self.act(experts, observation, uniform[:, 1:])
            return step + 1, self.actions.to_env(sample.action)

        end, trajectory = rollout(env, env_key, tasks, start, act, lambda action: action, noise)
        action = trajectory.decision.astype(float).reshape(steps, n, -1)
        change = trajectory.next_observation - trajectory.observation
        rows = [trajectory.observation, action, trajectory.reward[..., None], change]
        transitions = jnp.swapaxes(jnp.concatenate(rows, axis=-1), 0, 1)
        end = RolloutState(end.states, end.observation, end.starts, None, end.statistics)
        return ProbeResult(end, transitions, trajectory)

    def act(
        self,
        experts: PyTree,
        observation: Float[Array, "n o"],
        uniform: Float[Array, "n k"],
        deterministic: Bool[Array, ""] | bool = False,
    ) -> ActionSample:
        """Sample the actions of n experts, one in each environment."""
        answer = apply_experts(experts, self.observations(observation))
        return sample_action(self.actions, answer, uniform, deterministic)

    def plan(self, noise: Float[Array, "l n k"]) -> Shaped[Array, "l n ..."]:
        """Return what is done at every step of a probe: an action, or the expert that acts."""
        if self.probe.open_loop:
            return self.probe.plan(self.actions, noise[..., 1:])
        prior = self.priors.stages[0].family
        assert isinstance(prior, Categorical)
        if self.probe.kind == "expert":
            noise = jnp.broadcast_to(noise[:1], noise.shape)
        shape = (*noise.shape[:2], prior.log_probs.shape[-1])
        return invert_cdf(Categorical(jnp.broadcast_to(prior.log_probs, shape)), noise[..., 0])


@eqx.filter_jit
def probe_and_select(
    env: Env, key: Key[Array, ""], tasks: PyTree, policy: MetaPolicy
) -> tuple[Float[Array, "n l f"], Categorical]:
    """Probe tasks; return the transitions of the probe, and p(m|τ)."""
    probed = policy.run_probe(env, key, tasks)
    return probed.transitions, policy.select(probed.transitions)
