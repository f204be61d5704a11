"""Experts that move, with all that belongs to them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import networks
from pinfactory.core.constraints import Constraints, Fixed, Priors
from pinfactory.core.families import Categorical
from pinfactory.core.growth import (
    best_merges,
    best_split,
    fewest_as_good,
    mean_gain,
    order_by_share,
    parameter_price,
    reorder,
)
from pinfactory.core.hierarchy import FamilyExpert, assemble
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.splitting import split_outputs, split_priors
from pinfactory.core.utilities import log_likelihood

X = jnp.asarray(np.random.default_rng(0).normal(size=(12, 3)), jnp.float32)
Y = jnp.asarray(np.arange(12) % 2)
LEARNER = Learner(CommitteeLoss(log_likelihood), keep_average=True)
STEP = eqx.filter_jit(LEARNER.step)

SELECTORS = {
    "linear": lambda key: networks.limited(networks.linear(3, 4, key=key)),
    "mlp": lambda key: networks.mlp(3, 4, (5,), networks.tanh, key=key),
    "tree": lambda key: networks.SoftTree.random(3, 4, key=key),
}


@eqx.filter_jit
def decide(hierarchy, x):
    return hierarchy(x)


@eqx.filter_jit
def decide_all(hierarchy):
    return jax.vmap(hierarchy)(X)


def trained(selector):
    """Return a state after a few steps, in which everything of an expert differs."""
    hierarchy = assemble(
        jax.random.key(0),
        SELECTORS[selector],
        lambda key: FamilyExpert(networks.linear(3, 2, key=key), Categorical.from_logits),
        4,
    )
    like = decide(hierarchy, X[0])
    constraints = Constraints(Priors.running(like, 0.9, 0.9), (Fixed(25.0), Fixed(20.0)))
    state = LEARNER.init(hierarchy, constraints, learning_rate=0.1)
    for n in range(3):
        state, _ = STEP(jax.random.key(n), state, Data(X, Y, jnp.ones(12)))
    return state


def shares(state):
    return np.asarray(decide_all(state.model).responsibilities)


def answers(state):
    return np.exp(decide_all(state.model).answers.log_probs)


@pytest.mark.parametrize("selector", SELECTORS)
def test_what_was_learned_is_the_same_in_any_order(selector):
    state, order = trained(selector), np.asarray([2, 0, 3, 1])
    moved = reorder(state, order)
    np.testing.assert_allclose(shares(moved), shares(state)[:, order], atol=1e-6)
    np.testing.assert_allclose(answers(moved), answers(state)[:, order], atol=1e-6)
    # Training goes on as if nothing had happened: moments and priors have moved as well.
    batch = Data(X, Y, jnp.ones(12))
    for n in range(3):
        state, before = STEP(jax.random.key(n), state, batch)
        moved, after = STEP(jax.random.key(n), moved, batch)
        np.testing.assert_allclose(before.objective, after.objective, rtol=1e-5)
    np.testing.assert_allclose(
        shares(moved.averaged()), shares(state.averaged())[:, order], atol=1e-5
    )


def test_the_busiest_comes_first_and_who_is_switched_off_last():
    state = trained("mlp")
    available = jnp.asarray([True, False, True, True])
    state = eqx.tree_at(lambda s: s.model.available, state, available)
    share = np.asarray([0.1, 0.9, 0.3, 0.2])
    ordered = order_by_share(state, share)
    np.testing.assert_allclose(shares(ordered), shares(state)[:, [2, 3, 0, 1]], atol=1e-6)
    np.testing.assert_array_equal(ordered.model.available, [True, True, True, False])


def test_only_what_gains_more_than_its_price_is_split_or_merged():
    assert best_split(np.asarray([1.0, 3.0, 2.0]), 2.5) == 1
    assert best_split(np.asarray([1.0, 3.0, 2.0]), 3.0) is None
    assert best_split(np.empty(0)) is None
    # (0, 1) gains most, so that (1, 2) waits; (3, 4) loses.
    a, b = np.asarray([1, 0, 3, 2]), np.asarray([2, 1, 4, 5])
    assert best_merges(np.asarray([2.0, 3.0, -1.0, 0.5]), a, b) == [1, 3]
    # k parameters of N rows add k log N to Bayes' information criterion, which is −2 log p.
    assert parameter_price(np.exp(4.0), 3) == pytest.approx(6.0)


def test_the_fewest_experts_that_are_as_good_are_enough():
    noise, weight = np.tile([0.1, -0.1], 200), np.ones(400)
    # Three experts gain 0.002 over two, with a standard error of 0.1/√400 = 0.005.
    scores = np.stack([noise, 1.0 + noise, np.full(400, 1.002), 0.5 + noise], axis=1)
    assert fewest_as_good(scores, weight) == 2
    scores[:, 2] += 0.01
    assert fewest_as_good(scores, weight) == 3


def test_the_error_of_a_gain_is_that_of_a_weighted_mean_of_independent_rows():
    random = np.random.default_rng(0)
    weight = np.r_[np.full(20, 40.0), np.full(800, 1.0)]
    gains = random.normal(1.0, 0.5, size=(4000, len(weight)))
    means, errors = np.transpose([mean_gain(row, weight) for row in gains])
    np.testing.assert_allclose(means.mean(), 1.0, atol=0.01)
    np.testing.assert_allclose(np.sqrt(np.mean(errors**2)), means.std(), rtol=0.05)


def test_what_cannot_be_done_is_refused():
    state = trained("mlp")
    with pytest.raises(ValueError, match="every expert once"):
        reorder(state, np.asarray([0, 0, 1, 2]))
    with pytest.raises(TypeError, match="take_outputs"):
        reorder(eqx.tree_at(lambda s: s.model.selector, state, jnp.tanh), np.arange(4))


def test_copies_share_the_prior_of_their_parent():
    priors, parent = trained("mlp").constraints.priors, np.asarray([0, 1, 0, 3])
    new = split_priors(priors, jnp.asarray(parent))
    before, after = (np.exp(p.stages[0].family.log_probs) for p in (priors, new))
    expected = before[parent] / np.asarray([2.0, 1.0, 2.0, 1.0])
    np.testing.assert_allclose(after, expected / expected.sum(), rtol=1e-5)
    old, copied = (p.stages[1] for p in (priors, new))
    np.testing.assert_array_equal(copied.family.log_probs, old.family.log_probs[parent])
    np.testing.assert_array_equal(copied.mass, old.mass[parent])


def test_copies_divide_the_inputs_of_their_parent():
    layer, parent = networks.linear(3, 4, key=jax.random.key(0)), jnp.asarray([0, 1, 0, 3])
    direction, threshold = jnp.asarray([1.0, -2.0, 0.5]), jnp.full(4, 0.3)
    sharpness = jnp.asarray([-1.5, 0.0, 1.5, 0.0])
    new = split_outputs(layer, parent, direction, threshold, sharpness)
    before, after = (np.asarray(jax.vmap(part)(X)) for part in (layer, new))
    np.testing.assert_allclose(after[:, [1, 3]], before[:, [1, 3]], atol=1e-5)
    beyond = np.asarray(X @ direction) - 0.3
    np.testing.assert_allclose(after[:, 2] - after[:, 0], 3.0 * beyond, atol=1e-4)
    at_threshold = X[0] - beyond[0] * direction / jnp.sum(direction**2)
    one, two = np.exp(layer(at_threshold)[0]), np.exp(np.asarray(new(at_threshold))[[0, 2]])
    np.testing.assert_allclose(two, [one / 2, one / 2], rtol=1e-4)
