"""The PAC-Bayes bound of Section 2.2."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from pinfactory.core.generalisation import committee_gap, gaussian_divergence, pac_bayes_gap
from pinfactory.core.information import Information


def test_the_bound_is_that_of_a_hand_computation():
    # (0.5 + log(200/0.05)) / 398 = (0.5 + 8.29405) / 398
    assert float(pac_bayes_gap(0.5, 200)) == pytest.approx(np.sqrt(8.79405 / 398), rel=1e-5)


def test_a_committee_pays_for_both_stages_in_nats():
    information = Information((1.0,), 0.5, 0.8, np.zeros(2), np.full(2, 0.5), 2.0)
    wanted = np.sqrt((1.5 * np.log(2) + np.log(100 / 0.1)) / 198)
    assert float(committee_gap(information, 100, 0.9)) == pytest.approx(wanted, rel=1e-5)


def test_the_divergence_of_weights_is_that_of_two_gaussians():
    weights, bias, deviation, prior = np.array([[0.5, -1.0], [2.0, 0.0]]), np.array([0.3]), 0.2, 1.5
    model = {"weight": weights.astype(np.float32), "bias": bias.astype(np.float32), "units": 7}
    wanted = 0.0
    for mean in np.concatenate([weights.ravel(), bias]):

        def integrand(z, mean=mean):
            p, q = scipy.stats.norm(mean, deviation), scipy.stats.norm(0.0, prior)
            return p.pdf(z) * (p.logpdf(z) - q.logpdf(z))

        wanted += scipy.integrate.quad(integrand, mean - 2.0, mean + 2.0)[0]
    found = gaussian_divergence(model, deviation, prior)
    assert float(found) == pytest.approx(wanted, rel=1e-4)


def test_a_gibbs_posterior_breaks_the_bound_no_more_often_than_it_says():
    random, n, broken = np.random.default_rng(0), 50, 0
    truth = random.uniform(size=20)
    prior = np.full(20, 1 / 20)
    for _ in range(500):
        seen = random.binomial(n, truth) / n
        posterior = prior * np.exp(20.0 * seen)
        posterior /= posterior.sum()
        divergence = posterior @ np.log(posterior / prior)
        broken += posterior @ (seen - truth) > float(pac_bayes_gap(divergence, n, 0.8))
    assert broken <= 0.2 * 500


def test_one_sample_bounds_nothing():
    with pytest.raises(ValueError, match="`n_samples` must be at least 2"):
        pac_bayes_gap(1.0, 1)
