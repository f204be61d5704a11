"""How a few experts become many: every expert is split in two.

Experts that begin independently have to learn everything from their share of the tasks, and the
more there are, the smaller it is. Here only some begin. Later every expert is split: its child is
a copy and takes over the half of its tasks in which it processes most information. The child's
answers may be larger from the start.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from pinfactory.core.hierarchy import take_expert
from pinfactory.core.splitting import cost_direction, plan_splits, split_outputs, split_priors
from pinfactory.networks import Network
from pinfactory.recurrent import SequenceNetwork
from pinfactory.rl.actions import BoxActions
from pinfactory.rl.policy import take_one

from .state import MetaAgentState

# At the first split, the log odds in favour of the child grow by 8 with every standard deviation
# that a task costs more; by half as much at each later split, which divides smaller ranges.
SHARPNESS = 8.0


def split_experts(state: MetaAgentState) -> MetaAgentState:
    """Return the state with as many experts as there should be by now, at most twice as many."""
    hierarchy, priors = state.policy.hierarchy, state.policy.priors
    wanted = state.hyper.n_active(state.iteration)
    # The oldest first.
    age = -jnp.arange(len(hierarchy.available), dtype=float)
    parent, is_child, side = plan_splits(hierarchy.available, wanted, age)

    def copied(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[parent] if jnp.ndim(leaf) else leaf, tree)

    return eqx.tree_at(
        lambda s: (
            s.policy.hierarchy.experts,
            s.policy.hierarchy.available,
            s.policy.hierarchy.selector.readout,
            s.policy.priors,
            s.critics,
            s.selector_critic.readout,
            s.optimisers,
        ),
        state,
        (
            _scale_children(state, take_expert(hierarchy.experts, parent), is_child),
            hierarchy.available | is_child,
            _split_readout(state, parent, side),
            split_priors(priors, parent),
            take_expert(state.critics, parent),
            _split_critic(state, parent),
            (*map(copied, state.optimisers[:2]), *state.optimisers[2:]),
        ),
    )


def _split_critic(state: MetaAgentState, parent: Int[Array, " m"]) -> Network:
    """Return the last layer of the selector's critic, in which a child is as good as its parent."""
    readout, n_parts = state.selector_critic.readout, state.replay.free_energy.shape[1]
    assert isinstance(readout, eqx.nn.Linear)
    if len(readout.weight) == 1:  # it does not tell experts apart
        return readout
    return take_expert(readout, (n_parts * parent[:, None] + jnp.arange(n_parts)).ravel())


def _scale_children(state: MetaAgentState, experts: PyTree, is_child: Bool[Array, " m"]) -> PyTree:
    """Return experts with the answers of children multiplied by `child_scale`."""
    actions = state.policy.actions
    # Of a Gaussian only the mean: its standard deviation stays as it is.
    n_scaled = actions.n_noise if isinstance(actions, BoxActions) else actions.n_outputs
    factor = jnp.where(
        is_child[:, None] & (jnp.arange(actions.n_outputs) < n_scaled), state.hyper.child_scale, 1.0
    )

    def last(experts: PyTree) -> PyTree:
        layer = experts.network.layers[-1]
        return layer.weight, layer.bias

    weight, bias = last(experts)
    return eqx.tree_at(last, experts, (factor[..., None] * weight, factor * bias))


def _split_readout(
    state: MetaAgentState, parent: Int[Array, " m"], side: Float[Array, " m"]
) -> Network:
    """Return the selector's last layer, in which a child shares the tasks of its parent.

    The information of experts in their latest tasks, log KL(p(a|x,m) ‖ p(a|m)), is regressed on
    the selector's hidden state. All parents divide their tasks into cheap and costly ones by it,
    those of one generation (initial experts, their first children, …) at the same threshold, so
    that no tasks move between other experts.
    """
    hierarchy, replay = state.policy.hierarchy, state.replay
    selector = hierarchy.selector
    assert isinstance(selector, SequenceNetwork)
    tau = state.policy.transitions(replay.transitions)
    known = jnp.any(replay.transitions != 0.0, axis=(1, 2))
    hidden = jax.vmap(selector.remember)(tau)
    selection = jax.vmap(hierarchy.select)(tau).probs
    # The cost of a task for an expert that would not be chosen there says nothing about the task.
    chosen = known * take_one(selection, replay.expert)
    slope = cost_direction(hidden, jnp.log(jnp.maximum(replay.cost, 1e-6)), chosen)

    generation = jnp.arange(len(parent)) // state.hyper.n_initial_experts
    own = known[:, None] * (selection @ (generation[:, None] == generation))
    threshold = (hidden @ slope) @ (own / jnp.maximum(jnp.sum(own, axis=0), 1e-6))
    n = jnp.sum(hierarchy.available)
    sharpness = -0.5 * SHARPNESS * side * state.hyper.n_initial_experts / n
    assert isinstance(selector.readout, eqx.nn.Linear)
    return split_outputs(selector.readout, parent, slope, threshold[parent], sharpness)
