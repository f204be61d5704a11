import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.constraints import Prior, Priors
from pinfactory.core.families import Categorical, Gaussian
from pinfactory.core.hierarchy import Decision

EVEN = jnp.full(20, 0.05)


def first_of(decision):
    return Decision(
        tuple(Categorical(s.log_probs[0]) for s in decision.selections),
        Categorical(decision.answers.log_probs[0]),
    )


def test_one_batch_gives_its_own_marginals(random_decision, rng):
    decision = random_decision(20, 3, 5)
    weights = rng.dirichlet(np.ones(20)).astype(np.float32)
    start = Priors.running(first_of(decision), 0.9, 0.99)
    selector, expert = start.update(decision, jnp.asarray(weights)).stages
    p_m_given_x = np.asarray(decision.responsibilities, np.float64)
    p_m = weights @ p_m_given_x
    p_x_given_m = weights[:, None] * p_m_given_x / p_m
    p_y_given_m = np.einsum("xm,xmy->my", p_x_given_m, np.asarray(decision.answers.probs))
    np.testing.assert_allclose(selector.family.probs, p_m, rtol=1e-5)
    np.testing.assert_allclose(expert.family.probs, p_y_given_m, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.5, 0.97, 1.0])
def test_many_batches_give_the_discounted_mean(random_decision, momentum):
    batches = [random_decision(20, 3, 5) for _ in range(8)]
    priors = Priors.running(first_of(batches[0]), momentum, momentum)
    numerator, denominator = np.zeros((3, 5)), np.zeros(3)
    for batch in batches:
        priors = priors.update(batch, EVEN)
        weights = np.asarray(batch.responsibilities, np.float64) / 20
        numerator *= momentum
        numerator += np.einsum("xm,xmy->my", weights, np.asarray(batch.answers.probs))
        denominator = momentum * denominator + weights.sum(axis=0)
    expected = numerator / denominator[:, None]
    np.testing.assert_allclose(priors.stages[1].family.probs, expected, rtol=1e-5)


def test_an_expert_nobody_asks_keeps_its_prior(random_decision):
    decision = random_decision(20, 3, 5)
    priors = Priors.running(first_of(decision), 0.9, 0.9).update(decision, EVEN)
    only_first = Categorical.from_logits(jnp.tile(jnp.asarray([0.0, -1e9, -1e9]), (20, 1)))
    other = random_decision(20, 3, 5)
    after = priors.update(Decision((only_first,), other.answers), EVEN).stages[1].family
    before = priors.stages[1].family
    np.testing.assert_allclose(after.log_probs[1:], before.log_probs[1:], rtol=1e-6)
    assert not np.allclose(after.log_probs[0], before.log_probs[0], rtol=1e-3)


def test_fixed_and_uniform_priors_never_move(random_decision):
    decision = random_decision(20, 3, 5)
    uniform = Priors.uniform(first_of(decision)).update(decision, EVEN)
    np.testing.assert_allclose(uniform.stages[0].family.probs, np.full(3, 1 / 3), rtol=1e-6)
    np.testing.assert_allclose(uniform.stages[1].family.probs, np.full((3, 5), 0.2), rtol=1e-6)
    family = Categorical.from_probs(jnp.asarray([0.7, 0.3]))
    fixed = Prior.fixed(family).update(Categorical.uniform((4, 2)), jnp.full(4, 0.25))
    np.testing.assert_array_equal(fixed.family.log_probs, family.log_probs)


def test_a_uniform_prior_over_real_numbers_is_refused():
    answers = Gaussian(jnp.zeros((3, 1)), jnp.zeros((3, 1)))
    decision = Decision((Categorical.uniform((3,)),), answers)
    with pytest.raises(ValueError, match=r"must be over a finite set .* but got Gaussian"):
        Priors.uniform(decision)


def test_gaussian_priors_match_the_moments_of_all_they_have_seen(rng):
    batches = [
        (
            rng.normal(size=(10, 2)),
            rng.uniform(-1, 0.5, size=(10, 2)),
            rng.uniform(0.1, 1, size=10),
        )
        for _ in range(5)
    ]
    prior = Prior.running(Gaussian(jnp.zeros(2), jnp.zeros(2)), 0.8)
    mass, first, second = 0.0, 0.0, 0.0
    for mean, log_scale, weight in batches:
        family = Gaussian(jnp.asarray(mean, jnp.float32), jnp.asarray(log_scale, jnp.float32))
        prior = prior.update(family, jnp.asarray(weight, jnp.float32))
        mass = 0.8 * mass + weight.sum()
        first = 0.8 * first + weight @ mean
        second = 0.8 * second + weight @ (mean**2 + np.exp(2 * log_scale))
    np.testing.assert_allclose(prior.family.mean, first / mass, rtol=1e-4)
    variance = second / mass - (first / mass) ** 2
    np.testing.assert_allclose(prior.family.scale**2, variance, rtol=1e-4)
