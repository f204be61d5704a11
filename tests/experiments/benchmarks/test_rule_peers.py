"""Models that one can read: what is counted, and APLR behind scikit-learn's interface."""

import numpy as np
import pytest
from scipy import stats

from pinfactory import SpecialistRegressor
from pinfactory.experiments.benchmarks import rule_peers
from pinfactory.experiments.benchmarks._peers import (
    Aplr,
    cubist,
    decision_tree,
    held_out_likelihood,
    linear_tree,
)
from pinfactory.experiments.benchmarks._public_tables import TableSplit


def bent_line():
    x = np.random.default_rng(0).uniform(-1, 1, size=(200, 2))
    return x, 10.0 + 5.0 * np.abs(x[:, 0])


SPLIT = TableSplit(*bent_line(), *bent_line(), classify=False)


def test_lines_are_counted():
    x, y = bent_line()
    quick = {"start": "tree", "early_stopping": False, "max_iter": 200}
    committee = SpecialistRegressor(4, random_state=0, **quick).fit(x, y)
    assert rule_peers._n_parts(committee) == len(committee.information_.in_use) >= 2
    for tree, numbers in ((linear_tree, 3 * (2 + 1) + 2), (decision_tree, 3 + 2)):
        fitted = tree(False, 0, n_leaves=3).fit(x, y)
        assert rule_peers._n_parts(fitted) == 3
        assert rule_peers._n_numbers(fitted, SPLIT) == numbers
    # Two weights and a constant for each line, and a cut or two weights with a threshold between.
    n_lines = rule_peers._n_parts(committee)
    of_gates = rule_peers._n_numbers(committee, SPLIT) - 3 * n_lines
    assert n_lines - 1 <= of_gates <= 3 * (n_lines - 1)


def test_rules_of_cubist_are_counted():
    pytest.importorskip("cubist")
    x, y = bent_line()
    model = cubist(0).fit(x, y)
    assert rule_peers._n_parts(model) == 2  # one for each half
    assert rule_peers._n_numbers(model, SPLIT) == 2 * (1 + 2)  # a cut, a constant and a weight


def test_aplr_answers_in_numbers_with_the_deviation_of_its_own_folds():
    pytest.importorskip("aplr")
    x, y = bent_line()
    y = y + np.random.default_rng(1).normal(size=len(y))
    model = Aplr(False, 0, {"m": [100]}).fit(x, y)
    assert rule_peers._n_parts(model) == len(model.terms_) > 0
    deviation = np.sqrt(model.model_.get_cv_error())
    assert 0.7 < deviation < 1.5  # that of the noise is 1
    expected = stats.norm.logpdf(y, model.predict(x), deviation).mean()
    assert held_out_likelihood(model, x, y, x, y) == pytest.approx(expected)


def test_aplr_gives_probabilities_in_the_order_of_the_classes():
    pytest.importorskip("aplr")
    x, _ = bent_line()
    classes = np.array([30, 4, 200])[np.digitize(x[:, 0], [-0.3, 0.3])]
    model = Aplr(True, 0, {"m": [100]}).fit(x, classes)
    assert model.classes_.tolist() == [4, 30, 200]
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1.0, rtol=1e-6)
    assert np.mean(model.predict(x) == classes) > 0.9
    assert not hasattr(model, "score_samples")
    assert len(model.terms_) > 0


def test_shares_of_tables_count_a_tie_as_half_and_the_winner_is_said():
    def piece(table, method, score, seconds):
        return {"table": table, "method": method, "score": score, "seconds": seconds}

    rows = [
        piece("a", "8 linear experts", 0.9, 2.0),
        piece("a", "EBM", 0.8, 1.0),
        piece("b", "8 linear experts", 0.5, 2.0),
        piece("b", "EBM", 0.5, 9.0),
        piece("c", "8 linear experts", 0.5, 2.0),  # EBM has not been there
    ]
    found = {
        m.name: m.ours for m in rule_peers.measures({str(i): row for i, row in enumerate(rows)})
    }
    assert found["share of tables ahead in score, 8 linear experts, beside EBM"] == 0.75
    assert found["share of tables ahead in seconds, 8 linear experts, beside EBM"] == 0.5
    assert found["quantities won of 2, 8 linear experts, beside EBM"] == 1
    # On the first table one of two is ahead, which is not most; on the other one and a half.
    assert found["share of tables ahead in most at once, 8 linear experts, beside EBM"] == 0.5
