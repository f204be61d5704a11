"""All that a meta-learning agent learns, and where its tasks stand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision, FamilyExpert, Hierarchy, stack
from pinfactory.core.priors import Priors
from pinfactory.core.resources import UtilityScale
from pinfactory.networks import linear, mlp, relu
from pinfactory.recurrent import SequenceNetwork
from pinfactory.rl._actions import Actions
from pinfactory.rl._mind import OPTIMISER, Critics
from pinfactory.rl._normalise import Moments
from pinfactory.rl._rollout import World
from pinfactory.rl.envs import Env

from ._policy import MetaPolicy, Probe, transition_size

# The share of its way that a training has gone, as learning rates see it, when childhood ends.
GROWN = 0.8


class Hyper(eqx.Module):
    """Numbers that steer learning, all of them traced.

    Attributes
    ----------
    expert_rate, critic_rate, selector_rate
        Learning rates at iteration `first`; a fiftieth of them at iteration `last`.
    gamma, trace, clip
        Discount, the λ of the advantages, and PPO's range of ratios.
    beta_selector, beta_expert
        Resource parameters, for utilities in deviations of the return.
    balance
        Bonus on H(M) at iteration `first`; nothing at `last`.
    founders, n_experts, generation
        How many experts begin, how many there are in the end, and the share of the training
        between one division and the next.
    vigour
        By what factor the answers of a twin are stronger than those of its parent.
    childhood
        The share of the iterations in which founders learn, and the selector with them.
    first, last
        Iterations at which a training begins and ends.
    """

    expert_rate: Float[Array, ""]
    critic_rate: Float[Array, ""]
    selector_rate: Float[Array, ""]
    gamma: Float[Array, ""]
    trace: Float[Array, ""]
    clip: Float[Array, ""]
    beta_selector: Float[Array, ""]
    beta_expert: Float[Array, ""]
    balance: Float[Array, ""]
    founders: Float[Array, ""]
    n_experts: Float[Array, ""]
    generation: Float[Array, ""]
    vigour: Float[Array, ""]
    childhood: Float[Array, ""]
    first: Float[Array, ""]
    last: Float[Array, ""]

    def left(self, iteration: Int[Array, ""]) -> Float[Array, ""]:
        """Return how much of its way a training has yet to go.

        One at first, a fifth at the end of childhood, whenever that is, and nothing at last.
        """
        done = (iteration - self.first) / jnp.maximum(self.last - self.first, 1.0)
        young = 1.0 - GROWN * done / self.childhood
        old = (1.0 - GROWN) * (1.0 - done) / (1.0 - self.childhood)
        return jnp.clip(jnp.where(done < self.childhood, young, old), 0.0, 1.0)

    def grown_up(self, iteration: Int[Array, ""]) -> Bool[Array, ""]:
        """Return whether childhood is over."""
        return self.left(iteration) < 1.0 - GROWN + 1e-6

    def population(self, iteration: Int[Array, ""]) -> Int[Array, ""]:
        """Return how many experts there should be."""
        ripe = jnp.maximum(1.0 - self.left(iteration) - GROWN, 0.0)
        # A generation that is over but for rounding is over.
        divisions = jnp.floor(ripe / self.generation + 1e-3)
        return jnp.minimum(self.founders * 2.0**divisions, self.n_experts).astype(jnp.int32)


class Trials(eqx.Module):
    """The latest validation tasks.

    What the probe found, who was tried, its free energy, and the nats it paid for in a step.
    """

    transitions: Float[Array, "r l f"]
    expert: Int[Array, " r"]
    free_energy: Float[Array, " r"]
    cost: Float[Array, " r"]

    @classmethod
    def empty(cls, n: int, length: int, features: int) -> "Trials":
        """Make room for n trials."""
        return cls(
            jax.device_put(np.zeros((n, length, features), np.float32)),
            jax.device_put(np.zeros(n, np.int32)),
            jax.device_put(np.zeros(n, np.float32)),
            jax.device_put(np.zeros(n, np.float32)),
        )

    def add(self, new: "Trials", at: Int[Array, ""]) -> "Trials":
        """Write new trials over the oldest."""
        return jax.tree.map(
            lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, at, 0), self, new
        )


class MetaMind(eqx.Module):
    """What an agent knows about all tasks.

    Attributes
    ----------
    critics
        V_m(x) of every expert.
    judge
        The selector's recurrent critic: the free energy of every expert after a probe.
    scale
        Of the return, so that β means the same on any reward.
    """

    policy: MetaPolicy
    critics: Critics
    judge: SequenceNetwork
    scale: UtilityScale
    optimisers: tuple[optax.OptState, ...]
    trials: Trials
    hyper: Hyper
    iteration: Int[Array, ""]

    @property
    def learned(self) -> tuple[PyTree, ...]:
        """The four parts with an optimiser each: experts, critics, selector, judge."""
        hierarchy = self.policy.hierarchy
        return hierarchy.experts, self.critics, hierarchy.selector, self.judge

    @property
    def settled(self) -> Bool[Array, ""]:
        """Whether the selector stays as it is: childhood is over, or there is nobody to choose.

        Lines between twins would be lost in the noise of what the judge expects of each.
        """
        hyper = self.hyper
        divided = jnp.sum(self.policy.hierarchy.available) > hyper.founders
        return divided | hyper.grown_up(self.iteration) | (hyper.founders < 2.0)


class TaskWorld(eqx.Module):
    """Tasks that experts learn from: the bodies, who is in charge, and where each one stands.

    `over` marks tasks that are done with; a new task takes their place.
    """

    world: World
    tasks: PyTree
    expert: Int[Array, " n"]
    over: Bool[Array, " n"]
    returns: Float[Array, " n"]


def build_mind(
    key: Key[Array, ""],
    env: Env,
    actions: Actions,
    probe: Probe,
    hyper: Hyper,
    *,
    capacity: int,
    cell: str,
    units: int,
    hidden: tuple[int, ...],
    n_trials: int,
) -> MetaMind:
    """Build a mind that has learned nothing, with room for `capacity` experts."""
    n_inputs, features = len(env.observation_space.low), transition_size(env, actions)
    expert_key, critic_key, selector_key, judge_key = jax.random.split(key, 4)

    def expert(key: Key[Array, ""]) -> FamilyExpert:
        network = mlp(n_inputs, actions.n_outputs, hidden, relu, key=key)
        # Small first answers: nobody starts with a strong opinion.
        quiet = jax.tree.map(
            lambda w: jax.device_put(0.1 * np.asarray(w)),
            linear(hidden[-1], actions.n_outputs, key=jax.random.fold_in(key, 99)),
        )
        return FamilyExpert(eqx.tree_at(lambda n: n.layers[-1], network, quiet), actions)

    def critic(key: Key[Array, ""]) -> eqx.nn.Sequential:
        network = mlp(n_inputs, 1, hidden, relu, key=key)
        assert isinstance(network, eqx.nn.Sequential)
        return network

    experts = stack([expert(k) for k in jax.random.split(expert_key, capacity)])
    hierarchy = Hierarchy(
        SequenceNetwork.create(cell, features, capacity, units, key=selector_key),
        experts,
        jax.device_put(np.arange(capacity) < float(hyper.founders)),
    )
    critics = Critics.build(critic_key, capacity, critic)
    judge = SequenceNetwork.create(cell, features, capacity, units, key=judge_key)
    answers = eqx.filter_vmap(lambda e: e(jnp.zeros(n_inputs)))(experts)
    like = Decision((Categorical.uniform((capacity,)),), answers)
    policy = MetaPolicy(
        hierarchy,
        Priors.running(like, 0.9, 0.9),
        Moments.start(n_inputs),
        Moments.start(features),
        actions,
        probe,
    )
    learned = (experts, critics, hierarchy.selector, judge)
    return MetaMind(
        policy,
        critics,
        judge,
        UtilityScale(momentum=jnp.asarray(0.99)),
        tuple(
            # By NumPy, because JAX would compile a program for every shape.
            jax.tree.map(
                lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)),
                eqx.filter_eval_shape(OPTIMISER.init, eqx.filter(part, eqx.is_inexact_array)),
            )
            for part in learned
        ),
        Trials.empty(n_trials, probe.length, features),
        hyper,
        jax.device_put(np.zeros((), np.int32)),
    )
