import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pinfactory.core import information
from pinfactory.core.families import Categorical, Gaussian
from pinfactory.core.hierarchy import Decision
from pinfactory.core.information import Information, Meter

measure = jax.jit(information.measure)
estimate_information = jax.jit(information.estimate_information, static_argnums=2)
start, update, report = jax.jit(Meter.start), jax.jit(Meter.update), jax.jit(Meter.report)


def joint(decision, weights=None):
    """p(x, m₁, …, y) as one table."""
    stages = [np.asarray(stage.probs, np.float64) for stage in decision.stages]
    n = len(stages[0])
    table = np.full(n, 1 / n) if weights is None else np.asarray(weights) / np.sum(weights)
    for stage in stages:
        table = table[..., None] * stage
    return table


def entropy(table, *axes):
    """H in bits of the marginal over `axes`."""
    p = table.sum(axis=tuple(a for a in range(table.ndim) if a not in axes)).ravel()
    p = p[p > 0]
    return -np.sum(p * np.log2(p))


def mutual(table, a, b, given=()):
    """I(A;B|C) = H(A,C) + H(B,C) − H(A,B,C) − H(C), of axes of the table."""
    return (
        entropy(table, a, *given)
        + entropy(table, b, *given)
        - entropy(table, a, b, *given)
        - entropy(table, *given)
    )


def test_one_level_agrees_with_the_joint_table(random_decision, rng):
    decision = random_decision(30, 4, 5)
    weights = rng.uniform(0.1, 2.0, size=30).astype(np.float32)
    for given_weights in (None, weights):
        table = joint(decision, given_weights)
        info = measure(decision, None if given_weights is None else jnp.asarray(given_weights))
        np.testing.assert_allclose(info.selectors[0], mutual(table, 0, 1), rtol=1e-4)
        np.testing.assert_allclose(info.experts, mutual(table, 0, 2, (1,)), rtol=1e-4)
        np.testing.assert_allclose(info.overall, mutual(table, 0, 2), rtol=1e-4)
        p_m = table.sum(axis=(0, 2))
        np.testing.assert_allclose(info.responsibility, p_m, rtol=1e-5)
        np.testing.assert_allclose(info.effective_experts, 2 ** entropy(table, 1), rtol=1e-5)
        of_each = [mutual(table[:, [m]] / p_m[m], 0, 2, (1,)) for m in range(4)]
        np.testing.assert_allclose(info.per_expert, of_each, rtol=1e-4)
        np.testing.assert_allclose(p_m @ np.asarray(info.per_expert), info.experts, rtol=1e-4)


def test_two_levels_agree_with_the_joint_table(random_decision):
    decision = random_decision(30, 2, 3, 4)
    table = joint(decision)
    info = measure(decision)
    np.testing.assert_allclose(info.selectors[0], mutual(table, 0, 1), rtol=1e-4)
    np.testing.assert_allclose(info.selectors[1], mutual(table, 0, 2, (1,)), rtol=1e-4)
    np.testing.assert_allclose(info.experts, mutual(table, 0, 3, (1, 2)), rtol=1e-4)
    np.testing.assert_allclose(info.overall, mutual(table, 0, 3), rtol=1e-4)
    np.testing.assert_allclose(info.responsibility, table.sum(axis=(0, 3)), rtol=1e-5)
    np.testing.assert_allclose(info.effective_experts, 2 ** entropy(table, 1, 2), rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**16), sizes=st.permutations([1, 2, 3, 6]))
def test_a_stream_measures_what_one_big_batch_does(seed, sizes):
    rng = np.random.default_rng(seed)
    logits = [jnp.asarray(3 * rng.normal(size=s), jnp.float32) for s in ((12, 3), (12, 3, 4))]
    weights = jnp.asarray(rng.uniform(0.1, 2.0, size=12), jnp.float32)
    whole = Decision((Categorical.from_logits(logits[0]),), Categorical.from_logits(logits[1]))
    meter, at = start(whole), 0
    for size in sizes:
        part = jax.tree.map(lambda leaf, at=at, size=size: leaf[at : at + size], whole)
        meter, at = update(meter, part, weights[at : at + size]), at + size
    streamed, at_once = report(meter), report(update(start(whole), whole, weights))
    for mine, other in zip(jax.tree.leaves(streamed), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-5)
    assert at_once.overall <= at_once.selectors[0] + at_once.experts + 1e-5


def test_experts_that_agree_process_nothing_and_one_expert_counts_as_one():
    same = Categorical.from_probs(jnp.tile(jnp.asarray([0.2, 0.8]), (10, 3, 1)))
    one = Categorical.from_logits(jnp.tile(jnp.asarray([0.0, -1e9, -1e9]), (10, 1)))
    info = measure(Decision((one,), same))
    for value in (info.selectors[0], info.experts, info.overall):
        np.testing.assert_allclose(value, 0.0, atol=1e-6)
    np.testing.assert_allclose(info.effective_experts, 1.0, rtol=1e-6)


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_a_gaussian_expert_is_a_gaussian_channel(spread):
    """I(X;Y) = ½ log₂(1 + signal/noise) for Gaussian means and constant variance."""
    means = spread * norm.ppf((np.arange(4000) + 0.5) / 4000)
    answers = Gaussian(
        jnp.asarray(means, jnp.float32).reshape(-1, 1, 1), jnp.full((4000, 1, 1), np.log(0.8))
    )
    decision = Decision((Categorical.uniform((4000, 1)),), answers)
    expected = 0.5 * np.log2(1 + spread**2 / 0.8**2)
    info = measure(decision)
    np.testing.assert_allclose(info.experts, expected, rtol=2e-3)
    np.testing.assert_allclose(info.selectors[0], 0.0, atol=1e-6)
    assert np.isnan(info.overall)


def test_monte_carlo_agrees_with_the_exact_value_for_categorical_answers(random_decision):
    decision = random_decision(20, 3, 5)
    table = joint(decision)
    experts, overall = estimate_information(jax.random.key(0), decision, 5_000)
    assert abs(experts.value - mutual(table, 0, 2, (1,))) < 4 * experts.standard_error
    assert abs(overall.value - mutual(table, 0, 2)) < 4 * overall.standard_error
    assert 0 < experts.standard_error < 0.03


def test_monte_carlo_agrees_with_numerical_integration_for_gaussian_answers(rng):
    mean, log_scale = 2 * rng.normal(size=(6, 2)), rng.uniform(-1, 0.5, size=(6, 2))
    selection = Categorical.from_logits(jnp.asarray(rng.normal(size=(6, 2)), jnp.float32))
    answers = Gaussian(*(jnp.asarray(a, jnp.float32)[..., None] for a in (mean, log_scale)))
    experts, overall = estimate_information(
        jax.random.key(0), Decision((selection,), answers), 5_000
    )
    # On a fine grid of answers the densities are a joint table like any other.
    grid = np.linspace(-15, 15, 20_001)
    density = norm.pdf(grid, mean[..., None], np.exp(log_scale)[..., None]) * (grid[1] - grid[0])
    table = np.asarray(selection.probs, np.float64)[..., None] * density / 6
    assert abs(experts.value - mutual(table, 0, 2, (1,))) < 4 * experts.standard_error
    assert abs(overall.value - mutual(table, 0, 2)) < 4 * overall.standard_error


def test_information_is_printed_in_short_and_adds_up_the_levels_of_selection():
    information = Information(
        selectors=(0.5, 0.25),
        experts=1 / 3,
        overall=float("nan"),
        per_expert=np.array([0.5, 0.25]),
        responsibility=np.array([1 / 3, 2 / 3]),
        effective_experts=1.8899,
        about={"mass": 0.125},
    )
    assert information.selector == 0.75
    told = repr(information).splitlines()
    assert told[1].split() == ["selector", "I(X;M)", "0.750"]
    assert [row.split() for row in told[2:4]] == [["level", "1", "0.500"], ["level", "2", "0.250"]]
    assert told[4].split() == ["experts", "I(X;Y|M)", "0.333"]
    # What is not known, overall, is not shown.
    assert "1.89 equally busy experts of 2" in told[5]
    assert told[6].split() == ["I(mass;", "M)", "0.125"]
    assert [row.split() for row in told[-2:]] == [["0", "0.333", "0.500"], ["1", "0.667", "0.250"]]
    known = repr(dataclasses.replace(information, overall=0.625)).splitlines()
    assert known[5].split() == ["overall", "I(X;Y)", "0.625"]


@pytest.mark.parametrize("sharpness", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_are_possible_for_a_thousand_experts_in_both_precisions(dtype, sharpness, rng):
    n_experts, n = 1000, 300
    with jax.enable_x64(dtype is np.float64):
        logits = sharpness * rng.normal(size=(n, n_experts)).astype(dtype)
        answers = sharpness * rng.normal(size=(n, n_experts, 2)).astype(dtype)
        selected = Categorical.from_logits(jnp.asarray(logits))
        told = measure(Decision((selected,), Categorical.from_logits(jnp.asarray(answers))))
        assert told.selector.dtype == dtype
        told, shares = jax.tree.map(np.asarray, (told, selected.probs))
    rounding = 1e-4 if dtype is np.float32 else 1e-10
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=rounding)
    assert 0.0 <= told.selector <= np.log2(n_experts) + rounding
    assert 1.0 <= told.effective_experts <= n_experts * (1 + rounding)
    for bits in (told.experts, np.asarray(told.per_expert), told.overall):
        assert np.all((bits >= 0.0) & (bits <= 1.0 + rounding))
