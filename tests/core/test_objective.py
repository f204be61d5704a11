from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.constraints import Prior, Priors
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision
from pinfactory.core.objective import free_energy, objective, sampled_objective


def logits_for(rng, n, sizes):
    return [
        jnp.asarray(rng.normal(size=(n, *sizes[: i + 1])), jnp.float32) for i in range(len(sizes))
    ]


def decide(logits):
    stages = [Categorical.from_logits(stage) for stage in logits]
    return Decision(tuple(stages[:-1]), stages[-1])


def fixed_priors(rng, sizes):
    stages = logits_for(rng, 1, sizes)
    return Priors(tuple(Prior.fixed(Categorical.from_logits(stage[0])) for stage in stages))


def expected_utility(decision, table):
    axes = (1,) * len(decision.selections)
    return jnp.sum(decision.answers.probs * table.reshape(len(table), *axes, -1), axis=-1)


def brute_force(decision, priors, table, betas):
    """Sum J over every path of choices: E[U] − Σ 1/β · E[log posterior/prior]."""
    posteriors = [np.asarray(stage.log_probs, np.float64) for stage in decision.stages]
    common = [np.asarray(prior.family.log_probs, np.float64) for prior in priors.stages]
    sizes = posteriors[-1].shape[1:]
    values = np.zeros(len(table))
    for x, *choices in product(range(len(table)), *map(range, sizes)):
        log_path, value = 0.0, table[x, choices[-1]]
        for level, (posterior, prior, beta) in enumerate(
            zip(posteriors, common, betas, strict=True)
        ):
            index = tuple(choices[: level + 1])
            log_path += posterior[(x, *index)]
            value -= (posterior[(x, *index)] - prior[index]) / beta
        values[x] += np.exp(log_path) * value
    return values


SIZES = [(3, 4), (2, 3, 4)]
BETAS = {2: (1.5, 0.7), 3: (4.0, 1.5, 0.7)}


@pytest.mark.parametrize("sizes", SIZES, ids=["one selector", "selectors over selectors"])
def test_objective_is_the_sum_over_all_choices(rng, sizes):
    decision, priors = decide(logits_for(rng, 6, sizes)), fixed_priors(rng, sizes)
    table = rng.normal(size=(6, sizes[-1])).astype(np.float32)
    betas = BETAS[len(sizes)]
    parts = objective(decision, priors, expected_utility(decision, jnp.asarray(table)), betas)
    expected = brute_force(decision, priors, table, betas)
    np.testing.assert_allclose(parts.value, expected, rtol=1e-4, atol=1e-5)
    paid = sum(np.asarray(i) / b for i, b in zip(parts.information, betas, strict=True))
    np.testing.assert_allclose(parts.utility - paid, parts.value, rtol=1e-4, atol=1e-5)


def test_free_energy_of_an_expert_charges_for_its_information(rng):
    (_, logits), priors = logits_for(rng, 6, (3, 4)), fixed_priors(rng, (3, 4))
    table = rng.normal(size=(6, 4))
    answers, prior = Categorical.from_logits(logits), priors.stages[1].family
    p, q = (np.asarray(f.probs, np.float64) for f in (answers, prior))
    utility = np.einsum("xmy,xy->xm", p, table)
    expected = np.einsum("xmy,xmy->xm", p, table[:, None] - np.log(p / q) / 0.7)
    actual = free_energy(jnp.asarray(utility, jnp.float32), answers, prior, 0.7)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("sizes", SIZES, ids=["one selector", "selectors over selectors"])
def test_sampled_objective_and_its_gradient_are_unbiased(rng, sizes):
    logits, priors = logits_for(rng, 2, sizes), fixed_priors(rng, sizes)
    table = jnp.asarray(rng.normal(size=(2, sizes[-1])), jnp.float32)
    betas = BETAS[len(sizes)]

    def value(logits, key=None):
        decision = decide(logits)
        utility = expected_utility(decision, table)
        if key is None:
            return objective(decision, priors, utility, betas).value.sum()
        return sampled_objective(key, decision, priors, utility, betas).value.sum()

    exact = jax.jit(jax.value_and_grad(value))(logits)
    keys = jax.random.split(jax.random.key(0), 20_000)
    samples = jax.jit(jax.vmap(jax.value_and_grad(value), in_axes=(None, 0)))(logits, keys)
    for truth, drawn in zip(jax.tree.leaves(exact), jax.tree.leaves(samples), strict=True):
        drawn = np.asarray(drawn, np.float64)
        error = np.abs(drawn.mean(axis=0) - np.asarray(truth))
        assert np.all(error <= 4 * drawn.std(axis=0) / np.sqrt(len(keys)) + 1e-6)


def test_sampled_parts_add_up_to_the_value(rng):
    sizes, betas = (2, 3, 4), BETAS[3]
    decision, priors = decide(logits_for(rng, 6, sizes)), fixed_priors(rng, sizes)
    utility = jnp.asarray(rng.normal(size=(6, 2, 3)), jnp.float32)
    parts = sampled_objective(jax.random.key(0), decision, priors, utility, betas)
    paid = sum(i / b for i, b in zip(parts.information, betas, strict=True))
    np.testing.assert_allclose(parts.utility - paid, parts.value, rtol=1e-5)
    assert np.isin(np.asarray(parts.utility), np.asarray(utility)).all()


def test_inputs_of_a_group_share_the_sampled_expert(rng):
    """Twenty tasks of three queries each: the utility is the number of the expert."""
    tasks = decide(logits_for(rng, 20, (4, 2)))
    decision = jax.tree.map(lambda leaf: jnp.repeat(leaf, 3, axis=0), tasks)
    utility = jnp.tile(jnp.arange(4.0), (60, 1))
    priors = fixed_priors(rng, (4, 2))
    parts = sampled_objective(jax.random.key(0), decision, priors, utility, BETAS[2], 3)
    chosen = np.asarray(parts.utility).reshape(20, 3)
    np.testing.assert_array_equal(chosen, chosen[:, :1].repeat(3, axis=1))
    assert len(np.unique(chosen)) > 1


def test_uniform_priors_give_the_confidence_penalty(rng):
    """Pereyra et al. 2017, equation 4: loss − 1/β · H, once for each stage."""
    logits = logits_for(rng, 6, (3, 4))
    label = jnp.asarray(rng.integers(4, size=6))
    betas = (1.5, 0.7)

    def ours(logits):
        decision = decide(logits)
        priors = Priors.uniform(decide([stage[0] for stage in logits]))
        utility = decision.answers.log_prob(label[:, None])
        return objective(decision, priors, utility, betas).value.sum()

    def penalised(logits):
        p_m, p_y = (jax.nn.softmax(stage) for stage in logits)
        cross_entropy = -jnp.log(p_y[jnp.arange(6), :, label])
        h_m = -jnp.sum(p_m * jnp.log(p_m), axis=-1)
        h_y = -jnp.sum(p_y * jnp.log(p_y), axis=-1)
        return jnp.sum(h_m / betas[0] + jnp.sum(p_m * (h_y / betas[1] - cross_entropy), axis=-1))

    ours, penalised = (jax.jit(jax.value_and_grad(f)) for f in (ours, penalised))
    constant = 6 * (np.log(3) / betas[0] + np.log(4) / betas[1])
    for at in (logits, jax.tree.map(lambda leaf: 2.0 * leaf + 0.3, logits)):
        (mine, my_gradient), (theirs, their_gradient) = ours(at), penalised(at)
        np.testing.assert_allclose(mine, theirs - constant, rtol=1e-5)
        for one, other in zip(my_gradient, their_gradient, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("sampled", [False, True])
def test_switched_off_experts_cost_nothing_and_learn_nothing(linear_hierarchy, rng, sampled):
    hierarchy = linear_hierarchy(jax.random.key(0), 4)
    hierarchy = eqx.tree_at(lambda h: h.available, hierarchy, jnp.array([True, False, True, False]))
    x = jnp.asarray(rng.normal(size=(16, 2)), jnp.float32)
    y = jnp.asarray(rng.integers(2, size=16))

    @eqx.filter_jit
    @eqx.filter_value_and_grad(has_aux=True)
    def value(hierarchy):
        decision = jax.vmap(hierarchy)(x)
        priors = Priors.running(hierarchy(x[0]), 0.9, 0.9).update(decision, jnp.full(16, 1 / 16))
        utility = decision.answers.log_prob(y[:, None])
        args = (decision, priors, utility, (25.0, 5.0))
        parts = sampled_objective(jax.random.key(1), *args) if sampled else objective(*args)
        return parts.value.mean(), (parts, priors, decision)

    (total, (parts, priors, decision)), gradient = value(hierarchy)
    everything = jax.tree.leaves(eqx.filter((total, parts, priors, gradient), eqx.is_inexact_array))
    assert all(np.isfinite(leaf).all() for leaf in everything)
    assert np.all(np.asarray(decision.responsibilities)[:, [1, 3]] == 0.0)
    for leaf in jax.tree.leaves(gradient.experts):
        assert np.all(np.asarray(leaf)[[1, 3]] == 0.0)
        assert np.any(np.asarray(leaf)[[0, 2]] != 0.0)
