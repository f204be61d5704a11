"""Who acts in a new task: first a probe, then the expert that the selector chose for good."""

from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.priors import Priors
from pinfactory.rl._actions import Actions, BoxActions, DiscreteActions
from pinfactory.rl._multi_categorical import invert
from pinfactory.rl._normalise import Moments
from pinfactory.rl._rollout import Tally, Trajectory, World, rollout, uniforms
from pinfactory.rl.envs import Discrete, Env, reset_all

PROBES = ("shake", "noise", "prior", "expert")
Tree = TypeVar("Tree")


class Deed(NamedTuple):
    """An action in the expert's units, its log-probability, and the posterior it came from."""

    action: Shaped[Array, "..."]
    log_prob: Float[Array, "..."]
    answer: Family


class Probe(eqx.Module):
    """How the first `length` steps are spent, before there is anything to choose an expert by.

    - `"shake"`: small pushes to and fro, the same in every task. What differs between two
      responses is then the task alone, and the cart ends about where it began.
    - `"noise"`: small Gaussian actions.
    - `"prior"`: at every step an expert drawn from p(m).
    - `"expert"`: one expert drawn from p(m) for all steps, as in the paper.

    `size` is the reach of the first two, as a share of the actions' range.
    """

    kind: str = eqx.field(static=True)
    length: int = eqx.field(static=True)
    size: float = eqx.field(static=True)

    def plan(self, actions: Actions, uniform: Float[Array, "l n k"]) -> Shaped[Array, "l n ..."]:
        """Return the actions of a shake or of noise, as the environment takes them."""
        steps, n, _ = uniform.shape
        if isinstance(actions, DiscreteActions):
            turn = jnp.arange(steps, dtype=jnp.int32)[:, None] % actions.n
            drawn = jnp.floor(uniform[..., 0] * actions.n).astype(jnp.int32)
            choice = drawn if self.kind == "noise" else jnp.broadcast_to(turn, (steps, n))
            return actions.to_env(choice)
        assert isinstance(actions, BoxActions)
        low, high = np.array(actions.low, np.float32), np.array(actions.high, np.float32)
        # Each number of an action at a pace of its own, so that their effects can be told apart.
        pace = (np.arange(steps)[:, None] >> np.arange(len(low))) & 1
        push = jnp.broadcast_to((1.0 - 2.0 * pace)[:, None], (steps, n, len(low)))
        if self.kind == "noise":
            push = jax.scipy.special.ndtri(uniform)
        return jnp.asarray(0.5 * (low + high) + 0.5 * (high - low) * self.size * push)


class Probed(NamedTuple):
    """Where n environments are after the probe, and what it found.

    `transitions` holds (s, a, r, s′ − s) of every step; the change says the same as s′ itself, in
    a unit of its own.
    """

    world: World
    transitions: Float[Array, "n l f"]
    trajectory: Trajectory


class MetaPolicy(eqx.Module):
    """A recurrent selector over experts. All see numbers in units of their deviation."""

    hierarchy: Hierarchy
    priors: Priors
    observations: Moments
    transitions: Moments
    actions: Actions
    probe: Probe

    def select(self, transitions: Float[Array, "n l f"]) -> Categorical:
        """Return p(m|τ) for n probes."""
        return jax.vmap(self.hierarchy.select)(self.transitions(transitions))

    def explore(self, env: Env, key: Key[Array, ""], tasks: PyTree) -> Probed:
        """Reset all tasks and probe them."""
        reset_key, noise_key, env_key = jax.random.split(key, 3)
        states, observation = reset_all(env, reset_key, tasks)
        n, steps = len(observation), self.probe.length
        noise = uniforms(noise_key, (steps, n, 1 + self.actions.n_noise))
        plan = self.plan(noise)
        world = World(states, observation, jnp.ones(n, bool), jnp.asarray(0), Tally.start(n))

        def act(
            observation: Array, fresh: Array, step: Array, uniform: Array
        ) -> tuple[Array, Array]:
            if self.probe.kind in ("shake", "noise"):
                return step + 1, plan[step]
            own = of(self.hierarchy.experts, plan[step])
            answer = ask(own, self.observations(observation))
            return step + 1, self.actions.to_env(self.actions.draw(answer, uniform[:, 1:]))

        world, trajectory = rollout(env, env_key, tasks, world, act, lambda action: action, noise)
        action = trajectory.choice.astype(float).reshape(steps, n, -1)
        change = trajectory.next_observation - trajectory.observation
        rows = [trajectory.observation, action, trajectory.reward[..., None], change]
        transitions = jnp.swapaxes(jnp.concatenate(rows, axis=-1), 0, 1)
        world = World(world.states, world.observation, world.fresh, None, world.tally)
        return Probed(world, transitions, trajectory)

    def act(
        self,
        experts: PyTree,
        observation: Float[Array, "n o"],
        uniform: Float[Array, "n k"],
        deterministic: Bool[Array, ""] | bool = False,
    ) -> Deed:
        """Let n experts act, one in each environment."""
        answer = ask(experts, self.observations(observation))
        action = jnp.where(
            deterministic, self.actions.mode(answer), self.actions.draw(answer, uniform)
        )
        return Deed(action, answer.log_prob(action), answer)

    def plan(self, noise: Float[Array, "l n k"]) -> Shaped[Array, "l n ..."]:
        """Return what is done at every step of a probe: an action, or the expert who acts."""
        if self.probe.kind in ("shake", "noise"):
            return self.probe.plan(self.actions, noise[..., 1:])
        prior = self.priors.stages[0].family
        assert isinstance(prior, Categorical)
        if self.probe.kind == "expert":
            noise = jnp.broadcast_to(noise[:1], noise.shape)
        shape = (*noise.shape[:2], prior.log_probs.shape[-1])
        return invert(Categorical(jnp.broadcast_to(prior.log_probs, shape)), noise[..., 0])


def of(tree: Tree, expert: Int[Array, "..."]) -> Tree:
    """Return the part of each chosen expert; the choice's axes come first."""
    return jax.tree.map(lambda leaf: leaf[expert] if eqx.is_array(leaf) else leaf, tree)


def ask(experts: PyTree, x: Float[Array, "n o"]) -> Family:
    """Ask n experts one question each."""
    return eqx.filter_vmap(lambda expert, x: expert(x))(experts, x)


def transition_size(env: Env, actions: Actions) -> int:
    """Return how many numbers describe a transition."""
    numbers = 1 if isinstance(env.action_space, Discrete) else actions.n_noise
    return 2 * len(env.observation_space.low) + numbers + 1
