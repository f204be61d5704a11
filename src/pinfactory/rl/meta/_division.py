"""How a few experts become many: they divide, as cells do.

Experts that begin as strangers have to learn everything from their share of the tasks, and the more
there are, the smaller it is. Here only some begin. Later every expert divides: its twin knows all
that it knows, and takes over the harder half of its tasks.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

from pinfactory.core.families import Categorical
from pinfactory.core.priors import Priors
from pinfactory.networks import Network
from pinfactory.recurrent import SequenceNetwork

from ._mind import MetaMind
from ._policy import of

# At the first division, odds in favour of the twin grow by e^8 with every deviation that a task is
# harder; half as fast at each later one, which parts smaller ranges.
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
            of(hierarchy.experts, parent),
            hierarchy.available | born,
            _readout(mind, parent, side),
            _priors(priors, parent, side),
            of(mind.critics, parent),
            of(mind.judge.readout, parent),
            (*map(inherited, mind.optimisers[:2]), *mind.optimisers[2:]),
        ),
    )


def _readout(mind: MetaMind, parent: Int[Array, " m"], side: Float[Array, " m"]) -> Network:
    """Return the selector's last layer, in which twins share the tasks of their parent.

    The free energy that the judge expects of the selector in a task is regressed on what the
    selector keeps of the probe: a measure of how easy the task is. All parents part their easy
    tasks from their hard ones by it, so that nobody takes tasks from strangers.
    """
    hierarchy, trials = mind.policy.hierarchy, mind.trials
    selector = hierarchy.selector
    assert isinstance(selector, SequenceNetwork)
    tau = mind.policy.transitions(trials.transitions)
    known = jnp.any(trials.transitions != 0.0, axis=(1, 2)).astype(float)
    share = known / jnp.maximum(jnp.sum(known), 1.0)
    hidden = jax.vmap(selector.remember)(tau)
    selection = jax.vmap(hierarchy.select)(tau).probs
    worth = jnp.sum(selection * jax.vmap(mind.judge)(tau), axis=1)
    middle = share @ hidden
    apart = jnp.sqrt(share)[:, None] * (hidden - middle)
    spread = apart.T @ apart
    ridge = (1e-3 * jnp.trace(spread) / len(spread) + 1e-6) * jnp.eye(len(spread))
    slope = jnp.linalg.solve(spread + ridge, apart.T @ (jnp.sqrt(share) * (worth - share @ worth)))
    slope = slope / (jnp.linalg.norm(apart @ slope) + 1e-6)

    own = share[:, None] * selection
    centre = (hidden @ slope) @ (own / jnp.maximum(jnp.sum(own, axis=0), 1e-6))
    towards = 0.5 * SHARPNESS * side * mind.hyper.founders / jnp.sum(hierarchy.available)
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
