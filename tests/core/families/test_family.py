"""What every family promises alike."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jax.flatten_util import ravel_pytree

from pinfactory.core.families import Categorical, NormalWishart

pytestmark = pytest.mark.usefixtures("float64")


@jax.jit
def kl(p, q):
    return p.kl(q)


@jax.jit
def entropy(p):
    return p.entropy()


@jax.jit
def merge(p, weights):
    return p.merge(weights)


@jax.jit
def absorb(p, others, weights, rate):
    return p.absorb(others, weights, rate)


def numbers(*shape):
    return arrays(np.float64, shape, elements=st.floats(-3, 3))


def random_members(maker, *batch, seed=0):
    make, size = maker
    return make(np.random.default_rng(seed).normal(size=(*batch, size)))


def dirichlet(*shape, seed=0):
    """Weights that sum to one over the first axis."""
    draws = np.random.default_rng(seed).gamma(1.0, size=shape)
    return draws / draws.sum(0)


def pick(members, index):
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], members)


def moved(member, noise):
    """Shift a member's parameters, staying within the family."""
    flat, unravel = ravel_pytree(member)
    shifted = unravel(flat + noise)
    if isinstance(shifted, Categorical):
        return Categorical.from_logits(shifted.log_probs)
    if isinstance(shifted, NormalWishart):
        return eqx.tree_at(lambda p: p.scale_cholesky, shifted, jnp.tril(shifted.scale_cholesky))
    return shifted


def assert_close(p, q):
    for a, b in zip(jax.tree.leaves(p), jax.tree.leaves(q), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_kl_is_zero_for_equals_and_positive_otherwise(maker, data):
    make, size = maker
    p, q = (make(data.draw(numbers(size))) for _ in range(2))
    assert abs(kl(p, p)) < 1e-12
    assert kl(p, q) > -1e-12
    if any(not np.allclose(a, b) for a, b in zip(*map(jax.tree.leaves, (p, q)), strict=True)):
        assert kl(p, q) > 0


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_cost_of_the_merged_prior_is_its_entropy_less_the_mean_entropy(maker, data):
    make, size = maker
    members = make(data.draw(numbers(4, size)))
    weights = dirichlet(4, seed=data.draw(st.integers(0, 100)))
    prior = merge(members, weights)
    cost = weights @ kl(members, prior)
    gap = entropy(prior) - weights @ entropy(members)
    np.testing.assert_allclose(cost, gap, rtol=1e-7, atol=1e-9)


def test_merge_minimises_the_weighted_kl(maker):
    members, weights = random_members(maker, 4), dirichlet(4)
    prior = merge(members, weights)
    cost = jax.jit(lambda noise: weights @ members.kl(moved(prior, noise)))
    size = ravel_pytree(prior)[0].size
    rng = np.random.default_rng(1)
    for scale in np.repeat([1e-3, 1e-2], 10):
        assert cost(scale * rng.normal(size=size)) > cost(np.zeros(size))
    np.testing.assert_allclose(jax.grad(cost)(np.zeros(size)), 0.0, atol=1e-9)


def test_absorbing_a_batch_is_merging_all(maker):
    members = random_members(maker, 8)
    first, second = dirichlet(4, seed=1), dirichlet(4, seed=2)
    running = merge(pick(members, slice(4)), first)
    running = absorb(running, pick(members, slice(4, 8)), second, 0.1)
    assert_close(running, merge(members, np.concatenate([0.9 * first, 0.1 * second])))


def test_a_member_without_weight_does_not_count(maker):
    members = random_members(maker, 4)
    weights = dirichlet(4) * (np.arange(4) != 2)
    weights = weights / weights.sum()
    moved_away = jax.tree.map(np.array, members)
    for leaf in jax.tree.leaves(moved_away):
        leaf[2] *= 100.0
    assert_close(merge(moved_away, weights), merge(members, weights))


def test_merge_takes_weights_for_each_expert_or_for_all(maker):
    members, weights = random_members(maker, 4, 2), dirichlet(4, 2)
    merged, shared = merge(members, weights), merge(members, weights[:, 0])
    assert merged.batch_shape == shared.batch_shape == (2,)
    for m in range(2):
        expert = pick(members, (slice(None), m))
        assert_close(pick(merged, m), merge(expert, weights[:, m]))
        assert_close(pick(shared, m), merge(expert, weights[:, 0]))


def test_groups_merge_as_their_members_alone_do(maker):
    members = random_members(maker, 5, 2)
    group = np.asarray([[0, 2], [2, 0], [3, 0], [0, 3], [2, 3]])
    weights = np.random.default_rng(1).gamma(1.0, size=(5, 2))
    total = np.bincount(group.ravel(), weights.ravel())
    merge_groups = jax.jit(lambda p, weights, group: p.merge_groups(weights, group, 4))
    merged = merge_groups(members, weights / total[group], group)
    assert merged.batch_shape == (4,)
    for m in (0, 2, 3):
        own = group == m
        alone = pick(members, own)
        assert_close(pick(merged, m), merge(alone, weights[own] / total[m]))
    # One that nobody asked has no members, but stays finite.
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(merged))


def test_batches_of_answers_compare_with_one_prior_per_expert(maker):
    answers, priors = random_members(maker, 3, 2), random_members(maker, 2, seed=1)
    forward, backward = kl(answers, priors), kl(priors, answers)
    assert forward.shape == backward.shape == answers.batch_shape == entropy(answers).shape
    for i, m in np.ndindex(3, 2):
        one, prior = pick(answers, (i, m)), pick(priors, m)
        np.testing.assert_allclose(forward[i, m], kl(one, prior), rtol=1e-9)
        np.testing.assert_allclose(backward[i, m], kl(prior, one), rtol=1e-9)


def test_values_broadcast_against_the_batch(maker):
    members = random_members(maker, 2)
    draw = jax.jit(lambda p, key: p.sample(key, (4, 3)))
    log_prob = jax.jit(lambda p, x: p.log_prob(x))
    samples = draw(members, jax.random.key(0))
    assert samples.shape[:3] == (4, 3, 2)
    densities = log_prob(members, samples)
    assert densities.shape == (4, 3, 2)
    np.testing.assert_allclose(log_prob(members, samples[0, 0, 1])[1], densities[0, 0, 1])


def test_vmap_over_members_is_the_same_as_a_batch(maker):
    members, priors = random_members(maker, 4), random_members(maker, 4, seed=1)
    mapped = jax.jit(jax.vmap(lambda p, q: (p.kl(q), p.entropy())))(members, priors)
    assert_close(mapped, (kl(members, priors), entropy(members)))


def test_gradients_agree_with_finite_differences(maker):
    members, priors = random_members(maker, 3), random_members(maker, 3, seed=1)
    weights = jnp.array([0.4, 0.6, 0.0])
    size = ravel_pytree(members)[0].size

    @jax.jit
    def loss(noise, weights):
        p = moved(members, noise)
        return jnp.sum(p.kl(priors) + priors.kl(p.merge(weights)) + p.entropy())

    direction = np.random.default_rng(3).normal(size=size)
    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(np.zeros(size), weights)
    difference = loss(1e-6 * direction, weights) - loss(-1e-6 * direction, weights)
    np.testing.assert_allclose(slopes[0] @ direction, difference / 2e-6, rtol=1e-5)
    assert np.isfinite(slopes[1]).all()
