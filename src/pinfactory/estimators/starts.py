"""Committees that begin as a linear model tree: leaves become experts, cuts become gates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pinfactory import networks
from pinfactory.core.gaussian_experts import ConstantNoiseExpert, unbounded
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, pick, stack
from pinfactory.core.learning import Data, Learner, State
from pinfactory.core.training import Run, train

from .linear_tree import LinearTree, Node
from .table import RowBatches, RowNumbers, Table

# A gate of the selector goes from 0.05 to 0.95 within a deviation of the column in its leaf.
SHARPNESS = 6.0
# A perceptron begins small beside the linear map that a leaf gave it.
SMALL = 0.1
# How long a selector that is no tree is taught the leaves, and by how many rows.
TAUGHT_STEPS, TAUGHT_BATCH, TAUGHT_ROWS = 1000, 128, 4096


def begin(hierarchy: Hierarchy, tree: LinearTree, n_leaves: int) -> Hierarchy:
    """Return the hierarchy with the first experts set to the leaves, and no others available.

    Selectors that are trees themselves get the cuts; others have to be taught. Of several levels,
    the first has the first splits, and each of its experts what became of one leaf.
    """
    tree, n_experts = tree.first(n_leaves), len(hierarchy.available)
    n_used = min(tree.n_leaves, n_experts)
    available = jax.device_put(np.arange(n_experts) < n_used)
    selector, experts = hierarchy.selector, hierarchy.experts
    if isinstance(selector, networks.SoftTree):
        selector = _gates(selector, tree, n_used)
    if not isinstance(experts, Hierarchy):
        experts = _experts(experts, tree.leaves(n_used))
        return Hierarchy(selector, experts, available, top_k=hierarchy.top_k)
    inner = [pick(experts, m) for m in range(n_experts)]
    for m in range(n_used):
        inner[m] = begin(inner[m], tree.branch(n_used, m), n_leaves)
    return Hierarchy(selector, stack(inner), available)


def place(
    tree: LinearTree, n_leaves: int, sizes: Sequence[int], x: Float[np.ndarray, "n d"]
) -> Int[np.ndarray, " n"]:
    """Return which expert of the last level begins as the leaf of each row."""
    tree, below = tree.first(n_leaves), sizes[1:]
    n_used = min(tree.n_leaves, sizes[0])
    first = tree.assign(x, n_used)
    if not below:
        return first
    placed = first * math.prod(below)
    for m in range(n_used):
        mine = first == m
        placed[mine] += place(tree.branch(n_used, m), n_leaves, below, x[mine])
    return placed


def accepts_leaves(expert: Any) -> bool:
    """Return whether the network of an expert has a linear part that a leaf can set."""
    network = getattr(expert, "network", None)
    if isinstance(network, eqx.nn.Linear):
        return network.bias is not None
    return isinstance(network, networks.Residual | networks.Constant)


def _gates(selector: networks.SoftTree, tree: LinearTree, n_leaves: int) -> networks.SoftTree:
    weight, bias = (np.array(leaf) for leaf in (selector.weight, selector.bias))
    splits = tree.splits[: n_leaves - 1]
    for gate, split in enumerate(splits):
        sharpness = SHARPNESS / max(split.width, 1e-3)
        weight[gate], bias[gate] = sharpness * split.direction, -sharpness * split.cut
    path = networks.split_paths([split.leaf for split in splits], len(selector.path))
    return networks.SoftTree(*jax.device_put((weight, bias, path)))


def _experts(experts: Any, leaves: Sequence[Node]) -> Any:
    """Return stacked experts, the first of them with the linear maps of the leaves."""
    n_outputs = leaves[0].coefficients.shape[1]
    weight = np.stack([leaf.coefficients[:-1].T for leaf in leaves])
    bias = np.stack([leaf.coefficients[-1] for leaf in leaves])
    log_scale = np.stack([leaf.log_scale for leaf in leaves])
    if isinstance(experts, ConstantNoiseExpert):
        lowest = -5.0 if experts.floor is None else np.asarray(experts.floor)[: len(leaves)] / 1e3
        scale = _first(experts.log_scale, unbounded(log_scale, lowest))
        experts = eqx.tree_at(lambda e: e.log_scale, experts, scale)
    elif isinstance(experts, FamilyExpert) and _width(experts.network) == 2 * n_outputs:
        # The second half of the outputs are log-deviations, the same everywhere to begin with.
        weight = np.concatenate([weight, np.zeros_like(weight)], axis=1)
        bias = np.concatenate([bias, unbounded(log_scale)], axis=1)
    network = _with_linear_part(experts.network, weight, bias)
    return eqx.tree_at(lambda e: e.network, experts, network)


def _width(network: Any) -> int:
    """Return the number of outputs of stacked networks."""
    part: Any = network.linear if isinstance(network, networks.Residual) else network
    return part.bias.shape[1]


def _with_linear_part(network: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
    if isinstance(network, networks.Constant):
        return networks.Constant(_first(network.bias, bias))
    if isinstance(network, networks.Residual):
        linear = _with_linear_part(network.linear, weight, bias)
        last = jax.tree.map(
            lambda leaf: SMALL * leaf if eqx.is_array(leaf) else leaf, network.mlp.layers[-1]
        )
        return eqx.tree_at(lambda n: (n.linear, n.mlp.layers[-1]), network, (linear, last))
    changed = (_first(network.weight, weight), _first(network.bias, bias))
    return eqx.tree_at(lambda n: (n.weight, n.bias), network, changed)


def _first(old: Array, new: np.ndarray) -> Array:
    """Replace the first entries."""
    changed = np.array(old)
    changed[: len(new)] = new
    return jax.device_put(changed)


# --------------------------------------------------------------------- selectors that are taught


class SelectorLoss(eqx.Module):
    """−log p(m|x) of the leaf m that a row belongs to."""

    def __call__(
        self, model: Hierarchy, state: State, batch: Data, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Any, Float[Array, ""]]]:
        log_probs = jax.vmap(model.select_last)(batch.x).log_probs
        chosen = jnp.arange(log_probs.shape[1]) == batch.y[:, None]
        value = -jnp.mean(batch.weight * jnp.sum(jnp.where(chosen, log_probs, 0.0), axis=1))
        return value, (state.constraints, value)


def teach(
    hierarchies: Sequence[Hierarchy],
    table: Table,
    learned: Sequence[RowNumbers],
    assign: Sequence[Callable[[Float[np.ndarray, "n d"]], Int[np.ndarray, " n"]]],
    seeds: Sequence[int],
) -> list[Hierarchy]:
    """Train selectors to send every row to its leaf; experts stay as they are."""
    rows = [np.sort(own)[:TAUGHT_ROWS] for own in learned]
    parts = [table.take(own) for own in rows]
    codes = [choose(part.x) for choose, part in zip(assign, parts, strict=True)]
    ends = np.cumsum([len(part.x) for part in parts])
    together = Table(
        np.concatenate([part.x for part in parts]),
        np.concatenate(codes),
        np.concatenate([part.weight for part in parts]),
    )
    own_rows = [np.arange(end - len(part.x), end) for end, part in zip(ends, parts, strict=True)]
    learner = Learner(SelectorLoss())
    states = stack([learner.init(hierarchy, learning_rate=0.01) for hierarchy in hierarchies])
    keys = jnp.stack([jax.random.key(seed) for seed in seeds])
    trained = train(
        learner,
        Run.start(keys, states),
        together.padded(),
        batches=RowBatches(own_rows, TAUGHT_BATCH),
        steps=TAUGHT_STEPS,
        chunk=TAUGHT_STEPS,
    )
    return [pick(trained.run.state.model, n) for n in range(len(hierarchies))]
