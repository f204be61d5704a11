"""MAML and Matching Networks as the appendix has them: networks, one step, and comparison."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pinfactory import load, paper
from pinfactory.meta.tasks import ArrayTasks, Samples

RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def tasks():
    patterns = RANDOM.uniform(size=(20, 8, 8)) > 0.5
    pictures = np.repeat(patterns, 6, axis=0) + 0.1 * RANDOM.normal(size=(120, 8, 8))
    return ArrayTasks(pictures.astype(np.float32), np.arange(120) // 6, ways=2, shots=2, queries=2)


@pytest.fixture(scope="module")
def task():
    x = jnp.asarray(RANDOM.uniform(size=(4, 8, 8)), jnp.float32)
    query = jnp.asarray(RANDOM.uniform(size=(3, 8, 8)), jnp.float32)
    return Samples(x, jnp.array([0, 1, 0, 1])), query


def dense(network, x):
    """Return the 64 units in NumPy; the convolution is taken as it is."""
    convolved = np.asarray(jax.jit(jax.vmap(network.features.block))(x), float)
    layer = network.features.layer
    return np.maximum(convolved @ np.asarray(layer.weight, float).T + np.asarray(layer.bias), 0.0)


def test_matching_networks_compare_cosines_of_64_units(tasks, task):
    learner = paper.matching_networks(max_iter=20, random_state=0).fit(tasks)
    support, query = task
    model = learner.model_
    shown, asked = (dense(model.embedding, x) for x in (support.x, query))
    assert shown.shape == (4, 64)
    cosine = (asked / np.linalg.norm(asked, axis=1, keepdims=True)) @ (
        shown / np.linalg.norm(shown, axis=1, keepdims=True)
    ).T
    weight = scipy.special.softmax(cosine, axis=1)
    wanted = np.log([weight[:, [0, 2]].sum(axis=1), weight[:, [1, 3]].sum(axis=1)]).T
    np.testing.assert_allclose(eqx.filter_jit(model)(support, query), wanted, rtol=1e-4, atol=1e-5)


def test_maml_takes_one_step_of_the_whole_network_with_a_rate_of_a_twentieth(tasks, task):
    learner = paper.maml(max_iter=20, test_steps=1, random_state=0).fit(tasks)
    support, query = task
    model = learner.model_
    network = model.expert.initial.network
    layers, rest = eqx.partition(network, eqx.is_inexact_array)

    def loss(layers):
        logits = jax.vmap(eqx.combine(layers, rest))(support.x)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(4), support.y])

    slope = jax.jit(jax.grad(loss))(layers)
    moved = eqx.combine(jax.tree.map(lambda w, g: w - 0.05 * g, layers, slope), rest)
    head = moved.head
    logits = dense(moved, query) @ np.asarray(head.weight, float).T + np.asarray(head.bias, float)
    wanted = scipy.special.log_softmax(logits, axis=1)
    np.testing.assert_allclose(eqx.filter_jit(model)(support, query), wanted, rtol=1e-3, atol=1e-4)
    # The head of the appendix begins like all layers, not at zero.
    assert np.abs(np.asarray(network.head.weight)).max() > 0.05


def test_rates_stay_as_they_are_and_learners_are_stored(tasks, tmp_path):
    for make in (paper.maml, paper.matching_networks):
        learner = make(max_iter=30, random_state=0).fit(tasks)
        assert float(learner.state_.learning_rate(jnp.asarray(29))) == pytest.approx(3e-4)
        learner.save(tmp_path / "baseline.pin")
        again = load(tmp_path / "baseline.pin")
        assert type(again) is type(learner)
        assert again.evaluate(tasks, 50).mean == learner.evaluate(tasks, 50).mean


def test_what_one_block_has_no_use_for_is_refused(tasks):
    for settings in ({"blocks": 4}, {"strided": True}, {"transductive": True}):
        with pytest.raises(ValueError, match="must be"):
            paper.maml(max_iter=1, **settings).fit(tasks)
