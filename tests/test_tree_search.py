"""The best leaf of a tree of gates, found without a score for the others."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import make_friedman1

from pinfactory import SpecialistRegressor
from pinfactory.core.compiling import compiled_with_kernels
from pinfactory.networks import SoftTree, split_paths
from pinfactory.tree_search import TreeSearch


def grown(n_leaves, n_used, sharpness=1.0, seed=0):
    """Return a random tree of which some leaves are in use."""
    random = np.random.default_rng(seed)
    parents = [int(random.integers(n)) for n in range(1, n_used)]
    weight = sharpness * random.normal(size=(max(n_leaves - 1, 1), 3))
    bias = random.normal(size=max(n_leaves - 1, 1))
    gates = (weight.astype(np.float32), bias.astype(np.float32))
    return SoftTree(*map(jnp.asarray, (*gates, split_paths(parents, n_leaves))))


@compiled_with_kernels
def search(tree, x):
    return tree.best(x)


def best(tree, x, available):
    return search(TreeSearch.of(tree, jnp.asarray(available)), x)


SIZES = [(1, 1), (2, 2), (9, 9), (9, 1), (9, 6), (40, 33)]


@pytest.mark.parametrize(("n_leaves", "n_used"), [*SIZES, (300, 300)])
@pytest.mark.parametrize("sharpness", [0.1, 3.0])
def test_the_best_leaf_is_that_of_the_largest_logit(n_leaves, n_used, sharpness):
    tree = grown(n_leaves, n_used, sharpness)
    random = np.random.default_rng(1)
    x = jnp.asarray(random.normal(size=(50, 3)), jnp.float32)
    for share in (1.0, 0.6):
        available = (random.random(n_leaves) < share) & (np.arange(n_leaves) < n_used)
        available[0] = True
        found = best(tree, x, available)
        logits = np.where(available, jax.vmap(tree)(x), -np.inf)
        np.testing.assert_array_equal(found, logits.argmax(axis=1))


def test_leaves_that_were_moved_doubled_or_dropped_are_found():
    tree, order = grown(9, 9), jnp.asarray([3, 1, 1, 0, 8, 2, 7, 6, 5])
    moved = tree.take_outputs(order)
    x = jnp.asarray(np.random.default_rng(1).normal(size=(50, 3)), jnp.float32)
    for first in (True, False):
        available = np.ones(9, bool)
        available[1] = first
        logits = np.where(available, jax.vmap(moved)(x), -np.inf)
        np.testing.assert_array_equal(best(moved, x, available), logits.argmax(axis=1))


def test_the_best_expert_answers_alone():
    X, y = make_friedman1(150, random_state=0)
    settings = {"max_iter": 40, "early_stopping": False, "random_state": 0}
    committee = SpecialistRegressor(start="tree", **settings)
    for n_leaves in (5, 3):  # a second fit is asked anew
        committee.set_params(n_experts=n_leaves).fit(X, y)
        chosen = committee.responsibilities(X).argmax(axis=1)
        answers = np.stack([committee.expert_predict(X, m) for m in range(n_leaves)])
        expected = answers[chosen, np.arange(len(X))]
        np.testing.assert_allclose(committee.predict(X, routing="best"), expected, rtol=1e-5)
        assert committee._search() is committee._search()  # made once: many experts take long
