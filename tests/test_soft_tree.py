"""A tree of gates: its paths, all its leaves, and the best one found without the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_expit

from pinfactory.core.compiling import compiled_with_kernels
from pinfactory.soft_tree import SoftTree, split_off


def paths(parents, n_leaves):
    """Return the paths, split by split."""
    path = np.zeros((n_leaves, max(n_leaves - 1, 1)), int)
    for gate, parent in enumerate(parents):
        path[gate + 1] = path[parent]
        path[parent, gate], path[gate + 1, gate] = -1, 1
    return path


def grown(n_leaves, n_used, sharpness=1.0, seed=0):
    """Return a random tree of which some leaves are in use, and its paths."""
    random = np.random.default_rng(seed)
    parents = [int(random.integers(n)) for n in range(1, n_used)]
    weight = sharpness * random.normal(size=(max(n_leaves - 1, 1), 3))
    bias = random.normal(size=max(n_leaves - 1, 1))
    gates = map(jnp.asarray, (weight.astype(np.float32), bias.astype(np.float32)))
    tree = SoftTree(*gates, *map(jnp.asarray, split_off(parents, n_leaves)))
    return tree, paths(parents, n_leaves), weight, bias


best = compiled_with_kernels(lambda tree, x, available: tree.best_outputs(x, available))
SIZES = [(1, 1), (2, 2), (9, 9), (9, 1), (9, 6), (40, 33)]


@pytest.mark.parametrize(("n_leaves", "n_used"), SIZES)
def test_logits_are_log_probabilities_of_the_paths(n_leaves, n_used):
    tree, path, weight, bias = grown(n_leaves, n_used)
    np.testing.assert_array_equal(tree.path, path)
    x = np.random.default_rng(1).normal(size=(20, 3))
    sides = log_expit(path * (x @ weight.T + bias)[:, None])
    expected = np.where(path != 0, sides, 0.0).sum(axis=-1)
    found = jax.vmap(tree)(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("n_leaves", "n_used"), [*SIZES, (300, 300)])
@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_the_best_leaf_is_that_of_the_largest_logit(n_leaves, n_used, sharpness):
    tree, *_ = grown(n_leaves, n_used, sharpness)
    random = np.random.default_rng(1)
    x = jnp.asarray(random.normal(size=(50, 3)), jnp.float32)
    for share in (1.0, 0.6):
        available = (random.random(n_leaves) < share) & (np.arange(n_leaves) < n_used)
        available[0] = True
        found = best(tree, x, jnp.asarray(available))
        logits = np.where(available, jax.vmap(tree)(x), -np.inf)
        np.testing.assert_array_equal(found, logits.argmax(axis=1))


def test_moved_leaves_keep_their_logits():
    tree, *_ = grown(9, 9)
    x, order = jnp.asarray([0.3, -1.0, 2.0]), jnp.asarray([3, 1, 1, 0, 8, 2, 7, 6, 5])
    moved = tree.take_outputs(order)
    np.testing.assert_array_equal(moved(x), tree(x)[order])
    assert best(moved, x[None], jnp.ones(9, bool))[0] == np.argmax(moved(x))
