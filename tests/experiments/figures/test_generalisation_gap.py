"""The gap of committees: bits, the bound of their weights, and what is reported of them."""

import numpy as np
import pytest

from pinfactory import paper
from pinfactory.experiments.figures import generalisation_gap
from pinfactory.experiments.figures._generalisation_bound import bound_of_weights


def test_the_bound_of_a_committees_weights_is_about_committees_with_noise():
    learner = paper.classifier(2, max_iter=1, random_state=0).fit(np.eye(4)[:, :2], [0, 1, 0, 1])
    x = np.random.default_rng(0).normal(size=(400, 2))
    model = learner.state_.model
    y = learner.predict(x)
    # Labels that a committee gives itself are easier than random ones, with noise on it as well.
    found = bound_of_weights(model, (x, y), (x, 1 - y))
    assert 0.0 < found["noisy gap"] < found["bound"]
    by_hand = np.sqrt((found["divergence"] + np.log(400 / (0.05 / 4))) / (2 * 399))
    assert found["bound"] == pytest.approx(by_hand, rel=1e-4)
    same = bound_of_weights(model, (x, y), (x, y))
    assert same["noisy gap"] == pytest.approx(0.0, abs=1e-6)


def test_measures_relate_gap_bits_and_bound():
    gap, divergence = [0.0, 0.1, 0.2], [50.0, 40.0, 30.0]
    results = {
        f"beta_selector {n}": {
            "bits": [float(n), float(n)], "gap": [gap[n], gap[n]], "formula": [0.15, 0.25],
            "bound": [1.0 + n, 1.0 + n], "noisy gap": [0.5 * gap[n], 0.5 * gap[n]],
            "divergence": [divergence[n], divergence[n]],
        }
        for n in range(3)
    }  # fmt: skip
    found = {measure.name: measure.ours for measure in generalisation_gap.measures(results)}
    assert found["rank correlation of bits and gap"] == pytest.approx(1.0)
    assert found["rank correlation of the weights' divergence and gap"] == pytest.approx(-1.0)
    assert found["share of gaps below the formula"] == pytest.approx((2 / 3 + 1) / 2)
    assert found["least bound of the weights"] == pytest.approx(1.0)
    assert found["share of these gaps below their bound"] == 1.0
