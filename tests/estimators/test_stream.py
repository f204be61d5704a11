"""Streams in any order: rows are kept and learned from again."""

import numpy as np
import pytest
from scipy.stats import kstest

from pinfactory import SpecialistClassifier, SpecialistRegressor, base
from pinfactory.estimators.stream import MOST_KEPT, Samples, Stream

QUICK = {"n_experts": 2, "batch_size": 32, "random_state": 0}


def samples(first: int, last: int) -> Samples:
    x = np.arange(first, last, dtype=float)
    return Samples(x[:, None], x, np.ones(len(x)))


def test_what_is_kept_of_a_stream_is_a_random_sample_of_all_of_it():
    stream = Stream(samples(0, 1), complete=True)
    for start in range(0, 20_000, 500):
        stream.add(samples(start, start + 500))
    assert len(stream.kept.X) == MOST_KEPT == len(np.unique(stream.kept.y))
    assert kstest(stream.kept.y / 20_000, "uniform").pvalue > 0.01
    drawn = stream.draw(300)
    assert len(np.unique(drawn.y)) == 300
    np.testing.assert_array_equal(drawn.X[:, 0], drawn.y)


@pytest.fixture(scope="module")
def line() -> tuple[np.ndarray, np.ndarray]:
    """A straight line with noise."""
    random = np.random.default_rng(0)
    x = random.normal(5.0, 2.0, size=(6000, 2))
    return x, x @ [3.0, -1.0] + random.normal(0, 0.5, 6000)


def test_numbers_are_learned_from_a_stream_in_any_order(line):
    """By the target: the first feature rises with it, and so units of both change."""
    x, y = line
    scores = []
    for order in (np.arange(len(y)), np.argsort(y)):
        model = SpecialistRegressor(**QUICK)
        for batch in np.array_split(order, 10):
            model.partial_fit(x[batch], y[batch])
        scores.append(model.score(x, y))
    assert scores[1] > scores[0] - 0.02


def test_a_batch_that_weighs_more_counts_for_more():
    """Halves of each batch of rows disagree, and one of them has nine times the weight."""
    random = np.random.default_rng(0)
    model = SpecialistRegressor(n_experts=1, batch_size=32, random_state=0, learning_rate=0.01)
    for n in range(40):
        x = random.normal(size=(320, 2))
        sign = 1.0 if n % 2 else -1.0
        model.partial_fit(x, sign + random.normal(size=320), np.full(320, 5.0 + 4.0 * sign))
    assert model.predict(x).mean() == pytest.approx(0.8, abs=0.25)


def test_classes_that_come_one_after_the_other_are_told_apart():
    random = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 800)
    x = random.normal(size=(2400, 2)) + 6.0 * np.asarray([[0, 0], [1, 0], [0, 1]])[y]
    scores = []
    for order in (random.permutation(2400), np.arange(2400)):
        model = SpecialistClassifier(**QUICK)
        for batch in np.array_split(order, 12):
            model.partial_fit(x[batch], y[batch], classes=[0, 1, 2])
        scores.append(model.score(x, y))
    # The last class has only come in the last four batches.
    assert scores[1] > scores[0] - 0.05


def test_a_fitted_committee_keeps_its_units_whatever_comes(line):
    x, y = line
    model = SpecialistRegressor(**QUICK, max_iter=50, early_stopping=False).fit(x, y)
    units = model.scaler_.mean_, model.target_scaler_.scale_
    model.partial_fit(x[:50] + 100.0, y[:50])
    assert (model.scaler_.mean_, model.target_scaler_.scale_) == units


def test_a_batch_that_cannot_be_learned_from_leaves_no_rows_behind(line, monkeypatch):
    def fail(*_, **__):
        raise FloatingPointError("not finite")

    (x, y), models = line, [SpecialistRegressor(**QUICK) for _ in range(2)]
    for model in models:
        model.partial_fit(x[:600], y[:600])
    with monkeypatch.context() as patch:
        patch.setattr(base, "train", fail)
        with pytest.raises(FloatingPointError):
            models[0].partial_fit(x[600:1200], -y[600:1200])
    answers = [model.partial_fit(x[1200:1800], y[1200:1800]).predict(x) for model in models]
    np.testing.assert_array_equal(*answers)
