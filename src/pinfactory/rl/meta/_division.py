"""How a few experts become many: they divide, as cells do.

Experts that begin as strangers have to learn everything from their share of the tasks, and the more
there are, the smaller it is. Here only some begin. Later every expert divides: its twin knows all
that it knows and takes over the half of its tasks that cost it most information. It may answer more
strongly from the start.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.priors import Priors
from pinfactory.networks import Network
from pinfactory.recurrent import SequenceNetwork
from pinfactory.rl._actions import BoxActions

from ._mind import MetaMind
from ._policy import of

# At the first division, odds in favour of the twin grow by e^8 with every deviation that a task
# costs more; half as fast at each later one, which parts smaller ranges.
SHARPNESS = 8.0


def divide(mind: MetaMind) -> MetaMind:
    """Return the mind with as many experts as there should be by now, at most twice as many."""
    hierarchy, priors = mind.policy.hierarchy, mind.policy.priors
    number = jnp.arange(len(hierarchy.available))
    n = jnp.sum(hierarchy.available)
    wanted = jnp.minimum(mind.hyper.population(mind.iteration), 2 * n)
    born = (number >= n) & (number < wanted)
    parent = jnp.where(born, number - n, number)
    # One for a parent that divides, minus one for its twin, zero for all others.
    side = jnp.where(born, -1.0, jnp.where(number + n < wanted, 1.0, 0.0))

    def inherited(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[parent] if jnp.ndim(leaf) else leaf, tree)

    return eqx.tree_at(
        lambda m: (
            m.policy.hierarchy.experts,
            m.policy.hierarchy.available,
            m.policy.hierarchy.selector.readout,
            m.policy.priors,
            m.critics,
            m.judge.readout,
            m.optimisers,
        ),
        mind,
        (
            _stronger(mind, of(hierarchy.experts, parent), born),
            hierarchy.available | born,
            _readout(mind, parent, side),
            _priors(priors, parent, side),
            of(mind.critics, parent),
            of(mind.judge.readout, parent),
            (*map(inherited, mind.optimisers[:2]), *mind.optimisers[2:]),
        ),
    )


def _stronger(mind: MetaMind, experts: PyTree, born: Bool[Array, " m"]) -> PyTree:
    """Return experts of whom the new ones answer more strongly than their parents."""
    actions = mind.policy.actions
    # Of a Gaussian only the mean: how far answers scatter stays as it is.
    loud = actions.n_noise if isinstance(actions, BoxActions) else actions.n_outputs
    factor = jnp.where(
        born[:, None] & (jnp.arange(actions.n_outputs) < loud), mind.hyper.vigour, 1.0
    )

    def last(experts: PyTree) -> PyTree:
        layer = experts.network.layers[-1]
        return layer.weight, layer.bias

    weight, bias = last(experts)
    return eqx.tree_at(last, experts, (factor[..., None] * weight, factor * bias))


def _readout(mind: MetaMind, parent: Int[Array, " m"], side: Float[Array, " m"]) -> Network:
    """Return the selector's last layer, in which twins share the tasks of their parent.

    What experts paid in their latest validation tasks, log KL(p(a|x,m) ‖ p(a|m)), is regressed on
    what the selector keeps of the probe. All parents part cheap tasks from costly ones by it, those
    of one rank (a founder, its first twin, …) at the same place, so that nobody takes tasks from
    strangers.
    """
    hierarchy, trials = mind.policy.hierarchy, mind.trials
    selector = hierarchy.selector
    assert isinstance(selector, SequenceNetwork)
    tau = mind.policy.transitions(trials.transitions)
    known = jnp.any(trials.transitions != 0.0, axis=(1, 2))
    hidden = jax.vmap(selector.remember)(tau)
    selection = jax.vmap(hierarchy.select)(tau).probs
    # What a task costs someone who does not belong there says nothing about it.
    belongs = known * jnp.take_along_axis(selection, trials.expert[:, None], axis=1)[:, 0]
    share = belongs / jnp.maximum(jnp.sum(belongs), 1e-6)
    price = jnp.log(jnp.maximum(trials.cost, 1e-6))
    middle = share @ hidden
    apart = jnp.sqrt(share)[:, None] * (hidden - middle)
    spread = apart.T @ apart
    ridge = (1e-2 * jnp.trace(spread) / len(spread) + 1e-6) * jnp.eye(len(spread))
    slope = jnp.linalg.solve(spread + ridge, apart.T @ (jnp.sqrt(share) * (price - share @ price)))
    slope = slope / (jnp.linalg.norm(apart @ slope) + 1e-6)

    rank = jnp.arange(len(parent)) // mind.hyper.founders
    own = known[:, None] * (selection @ (rank[:, None] == rank))
    centre = (hidden @ slope) @ (own / jnp.maximum(jnp.sum(own, axis=0), 1e-6))
    towards = -0.5 * SHARPNESS * side * mind.hyper.founders / jnp.sum(hierarchy.available)
    old = of(selector.readout, parent)
    assert isinstance(old, eqx.nn.Linear)
    assert old.bias is not None
    weight = old.weight + towards[:, None] * slope
    bias = old.bias - towards * centre[parent] - jnp.log(2.0) * jnp.abs(side)
    return eqx.tree_at(lambda layer: (layer.weight, layer.bias), old, (weight, bias))


def _priors(priors: Priors, parent: Int[Array, " m"], side: Float[Array, " m"]) -> Priors:
    """Return priors with p(m) of a parent shared by twins, who both keep its p(a|m)."""
    of_selector, of_experts = priors.stages
    assert isinstance(of_selector.family, Categorical)
    probs = of_selector.family.probs[parent] * jnp.where(side == 0.0, 1.0, 0.5)
    shared = Categorical.from_probs(probs / jnp.sum(probs))
    twins = (of(of_experts.family, parent), of_experts.mass[parent])
    return Priors(
        (
            eqx.tree_at(lambda p: p.family, of_selector, shared),
            eqx.tree_at(lambda p: (p.family, p.mass), of_experts, twins),
        )
    )
