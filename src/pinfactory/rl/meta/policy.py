"""The policy in a new task: first a probe, then the expert that the selector chose by it."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from pinfactory.core.compiling import compiled_fully
from pinfactory.core.constraints import Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Hierarchy, take_expert
from pinfactory.rl.actions import Actions, BoxActions, DiscreteActions, invert_cdf
from pinfactory.rl.envs import Discrete, Env
from pinfactory.rl.normalise import Moments
from pinfactory.rl.policy import ActionSample, apply_experts, sample_action
from pinfactory.rl.rollout import RolloutState, Trajectory, rollout, uniforms

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

    def explore(
        self, key: Key[Array, ""], probs: Float[Array, "n m"], rate: Float[Array, ""]
    ) -> Int[Array, " n"]:
        """Sample experts by p(m|τ), or with the probability `rate` any that is available."""
        available = self.hierarchy.available
        mixed = rate * (available / jnp.sum(available)) + (1.0 - rate) * probs
        return jax.random.categorical(key, jnp.log(mixed)).astype(jnp.int32)

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


@compiled_fully
def probe_and_select(
    env: Env, key: Key[Array, ""], tasks: PyTree, policy: MetaPolicy
) -> tuple[Float[Array, "n l f"], Categorical]:
    """Probe tasks; return the transitions of the probe, and p(m|τ)."""
    probed = policy.run_probe(env, key, tasks)
    return probed.transitions, policy.select(probed.transitions)
