"""All that a meta-learning agent learns, and the state of the tasks it learns from."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.compiling import compiled_fully
from pinfactory.core.constraints import Resource, UtilityScale
from pinfactory.core.splitting import n_wanted
from pinfactory.networks import reserve
from pinfactory.recurrent import SequenceNetwork
from pinfactory.rl.envs import Env
from pinfactory.rl.rollout import RolloutState
from pinfactory.rl.values import Critics

from .policy import MetaPolicy

# The progress of a training, as learning rates see it, when experts begin to be split.
GROWTH_START = 0.8


class Hyperparameters(eqx.Module):
    """Numbers that control learning, all of them traced.

    Learning rates fall to a fiftieth, and the bonus `balance_coef` on H(M) to zero, between
    `first_iteration` and `last_iteration`. After a fraction `growth_fraction` of them the selector
    is fixed, and `n_initial_experts` are split, with the progress `split_interval` between two
    splits, until there are `n_experts`; the answers of a new one are `child_scale` times its
    parent's.
    """

    learning_rate: Float[Array, ""]
    critic_learning_rate: Float[Array, ""]
    selector_learning_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    gae_lambda: Float[Array, ""]
    clip_range: Float[Array, ""]
    balance_coef: Float[Array, ""]
    n_initial_experts: Float[Array, ""]
    n_experts: Float[Array, ""]
    split_interval: Float[Array, ""]
    child_scale: Float[Array, ""]
    growth_fraction: Float[Array, ""]
    first_iteration: Float[Array, ""]
    last_iteration: Float[Array, ""]

    def remaining(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """Return the fraction of a training that remains, as learning rates see it.

        One at first, a fifth when growth begins, whenever that is, and zero at last.
        """
        length = jnp.maximum(self.last_iteration - self.first_iteration, 1.0)
        done = (iteration - self.first_iteration) / length
        before = 1.0 - GROWTH_START * done / self.growth_fraction
        after = (1.0 - GROWTH_START) * (1.0 - done) / (1.0 - self.growth_fraction)
        return jnp.clip(jnp.where(done < self.growth_fraction, before, after), 0.0, 1.0)

    def growing(self, iteration: Int[Array, ""]) -> Bool[Array, ""]:
        """Return whether growth has begun."""
        return self.remaining(iteration) < 1.0 - GROWTH_START + 1e-6

    def n_active(self, iteration: Int[Array, ""]) -> Int[Array, ""]:
        """Return how many experts there should be."""
        grown = jnp.maximum(1.0 - self.remaining(iteration) - GROWTH_START, 0.0)
        return n_wanted(grown, self.split_interval, self.n_initial_experts, self.n_experts)


class SelectorReplay(eqx.Module):
    """The selector's latest tasks.

    The transitions of the probe, the expert that acted, its free energy in the parts that critics
    have (reward and information, or both in one), and the nats it processed in a step.
    """

    transitions: Float[Array, "r l f"]
    expert: Int[Array, " r"]
    free_energy: Float[Array, "r k"]
    cost: Float[Array, " r"]

    @classmethod
    def empty(cls, n: int, length: int, features: int, n_parts: int) -> "SelectorReplay":
        """Make room for n tasks."""
        reserve(n, length, features)
        transitions, free_energy, cost = (
            np.zeros((n, *shape), np.float32) for shape in ((length, features), (n_parts,), ())
        )
        return cls(*jax.device_put((transitions, np.zeros(n, np.int32), free_energy, cost)))

    def add(self, new: "SelectorReplay", iteration: Int[Array, ""]) -> "SelectorReplay":
        """Write the tasks of an iteration over the oldest."""
        n = len(new.expert)
        at = (iteration % (len(self.expert) // n)) * n
        return jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, at, 0), self, new
        )


class MetaAgentState(eqx.Module):
    """What an agent has learned about all tasks.

    The critics are V_m(x) of every expert; the selector's recurrent critic gives the free energy of
    every expert after a probe, in parts, or that of the selector alone. β of `resources` is for
    utilities in standard deviations of the return, which `scale` measures. `optimisers` are those
    of experts, critics, selector and selector critic.
    """

    policy: MetaPolicy
    critics: Critics
    selector_critic: SequenceNetwork
    resources: tuple[Resource, Resource]
    scale: UtilityScale
    optimisers: tuple[optax.OptState, ...]
    replay: SelectorReplay
    hyper: Hyperparameters
    iteration: Int[Array, ""]

    @property
    def learned(self) -> tuple[PyTree, ...]:
        """The four parts with an optimiser each."""
        hierarchy = self.policy.hierarchy
        return hierarchy.experts, self.critics, hierarchy.selector, self.selector_critic

    @property
    def selector_fixed(self) -> Bool[Array, ""]:
        """Whether the selector no longer learns: growth has begun, or there is nothing to choose.

        The boundaries between an expert and its child would be lost in the noise of the selector's
        critic.
        """
        hyper = self.hyper
        grown = jnp.sum(self.policy.hierarchy.available) > hyper.n_initial_experts
        return grown | hyper.growing(self.iteration) | (hyper.n_initial_experts < 2.0)

    def rescaled(self, factor: Float[Array, ""]) -> "MetaAgentState":
        """Return an agent whose values hold in a new unit of rewards (Pop-Art).

        That unit is not one of information, whose part of a value stays as it is.
        """
        n_parts = self.replay.free_energy.shape[1]
        readout = self.selector_critic.readout
        return eqx.tree_at(
            lambda a: (a.critics, a.selector_critic.readout, a.replay.free_energy),
            self,
            (
                self.critics.rescaled(factor),
                jax.tree.map(lambda w: w.at[::n_parts].multiply(factor), readout),
                self.replay.free_energy.at[:, 0].multiply(factor),
            ),
        )


class TaskSlots(eqx.Module):
    """Tasks that experts learn from: parameters, the expert in charge, state of the environment.

    `over` marks tasks that are replaced in the next iteration. `returns` are those of the last
    episode that ended in a slot, where `finished`.
    """

    environments: RolloutState
    tasks: PyTree
    expert: Int[Array, " n"]
    over: Bool[Array, " n"]
    returns: Float[Array, " n"]
    finished: Bool[Array, " n"]

    @classmethod
    @compiled_fully
    def start(cls, env: Env, policy: MetaPolicy, key: Key[Array, ""], tasks: PyTree) -> "TaskSlots":
        """Return slots that are all to be filled in the first iteration."""
        environments = policy.run_probe(env, key, tasks).environments
        n = environments.starts.shape[0]
        none = jnp.zeros(n, bool)
        return cls(environments, tasks, jnp.zeros(n, jnp.int32), ~none, jnp.zeros(n), none)
