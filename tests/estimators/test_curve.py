import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from sklearn.datasets import make_circles
from sklearn.model_selection import train_test_split

from pinfactory import SpecialistClassifier, SpecialistRegressor, rate_utility_curve
from pinfactory.core.batches import Epochs
from pinfactory.estimators import curve as curves
from pinfactory.sweep import SweepError

CIRCLES = make_circles(300, factor=0.4, noise=0.05, random_state=0)
QUICK = {
    "n_experts": 2,
    "selector": "mlp",
    "start": "random",
    "objective": "free_energy",
    "n_init": 1,
    "max_iter": 1000,
    "learning_rate": 0.01,
}
GRID = {"beta_selector": np.array([0.1, 2.0, 25.0]), "n_seeds": 1, "random_state": 0}


@pytest.fixture(scope="module")
def curve():
    return rate_utility_curve(SpecialistClassifier(**QUICK), *CIRCLES, **GRID)


def parts(X, y):
    """Return training and held-out samples as the curve splits them for random_state 0."""
    random = np.random.RandomState(0)
    random.randint(2**31 - 1, size=1)
    fitted, held_out = train_test_split(np.arange(len(X)), test_size=0.2, random_state=random)
    return X[fitted], y[fitted], X[held_out], y[held_out]


def mutual_information(probs):
    return entropy(probs.mean(axis=0), base=2) - entropy(probs, axis=1, base=2).mean()


def test_a_point_of_the_grid_is_what_a_fit_with_its_seed_gives(curve):
    X_train, y_train, X_test, y_test = parts(*CIRCLES)
    alone = SpecialistClassifier(**QUICK, beta_selector=25.0, random_state=0)
    alone.fit(X_train, y_train)
    assert curve.score_name == "accuracy"
    assert curve.score[2] == pytest.approx(alone.score(X_test, y_test), abs=0.01)
    assert curve.information_selector[2] == pytest.approx(
        mutual_information(alone.responsibilities(X_test)), abs=0.02
    )
    assert curve.information_overall[2] == pytest.approx(
        mutual_information(alone.predict_proba(X_test)), abs=0.02
    )


def test_a_regressor_is_judged_by_r2_and_its_information_is_estimated():
    X, _ = CIRCLES
    y = 5 + 3 * np.abs(X[:, 0])
    curve = rate_utility_curve(SpecialistRegressor(**QUICK), X, y, **GRID)
    X_train, y_train, X_test, y_test = parts(X, y)
    alone = SpecialistRegressor(**QUICK, beta_selector=25.0, random_state=0)
    alone.fit(X_train, y_train)
    assert curve.score_name == "R²"
    assert curve.score[2] == pytest.approx(alone.score(X_test, y_test), abs=0.01)
    # With next to no selector one line is left, and no line tells anything of a symmetric bend.
    assert curve.information_overall[0] == pytest.approx(0.0, abs=0.05)
    assert np.all(curve.information_overall[1:] > 1.0)
    # What both stages pay bounds what the answer can tell of the input.
    paid = curve.information_selector + curve.information_experts
    assert np.all(curve.information_overall < paid + 0.1)


def test_trainings_in_another_process_are_kept_and_not_repeated(curve, tmp_path, monkeypatch):
    model = SpecialistClassifier(**QUICK)
    there = rate_utility_curve(model, *CIRCLES, **GRID, store=tmp_path, jobs=1)
    np.testing.assert_allclose(there.information_overall, curve.information_overall, atol=1e-3)
    monkeypatch.setattr(curves.Trainer, "fit_part", None)
    again = rate_utility_curve(model, *CIRCLES, **GRID, store=tmp_path)
    np.testing.assert_array_equal(again.information_overall, there.information_overall)
    other = GRID | {"beta_selector": [1.0]}
    with pytest.raises(SweepError, match="training=0"):
        rate_utility_curve(model, *CIRCLES, **other, store=tmp_path)


def test_more_resources_of_the_selector_buy_more_information_and_accuracy(curve):
    assert np.all(np.diff(curve.information_selector) > -0.05)
    assert curve.information_selector[0] < 0.05
    assert curve.information_selector[-1] > 0.8
    assert curve.score[-1] > curve.score[0] + 0.2


def test_the_frame_has_a_row_for_every_training(curve):
    frame = curve.to_frame()
    assert len(frame) == len(curve) == 3
    np.testing.assert_allclose(frame["beta_selector"], GRID["beta_selector"])
    assert (frame["beta_expert"] == SpecialistClassifier().beta_expert).all()
    assert (frame["n_experts"] == 2).all()
    assert frame.notna().all(axis=None)


def test_further_blocks_compile_nothing(monkeypatch):
    monkeypatch.setattr(curves, "MOST_REPLICAS", 3)
    # Other tests may have filled the caches, which would be emptied between the two fits.
    monkeypatch.setattr("pinfactory.core.training.forget_programs", lambda: None)
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    def run(**grid):
        committee = SpecialistClassifier(**QUICK | {"max_iter": 10}, batch_size=16)
        return rate_utility_curve(committee, *CIRCLES, random_state=0, **grid)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        assert len(run(n_seeds=3)) == 3
        assert compiled
        compiled.clear()
        assert len(run(n_experts=[1, 2], n_seeds=3, beta_selector=[3.0])) == 6
        assert not compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=70))
def test_blocks_hold_every_training_and_have_one_size_and_one_first(sizes):
    grid = [curves.Replica(i, size, None, None) for i, size in enumerate(sizes)]
    blocks = curves._blocks(grid)
    assert {i for block in blocks for i in block} == set(range(len(sizes)))
    assert len({len(block) for block in blocks}) == 1
    assert len(blocks[0]) <= 16
    assert {sizes[block[0]] for block in blocks} == {max(sizes)}
    assert len({block[0] for block in blocks}) == 1


def test_an_empty_grid_is_refused():
    with pytest.raises(ValueError, match="must hold at least one value each"):
        rate_utility_curve(SpecialistClassifier(), *CIRCLES, beta_selector=[])


def test_ctrl_c_ends_a_curve_and_nothing_unfinished_is_kept(monkeypatch, tmp_path):
    def press(self, seeds, done, chunk, *, choose=Epochs.__call__):
        if done:
            raise KeyboardInterrupt
        return choose(self, seeds, done, chunk)

    monkeypatch.setattr(Epochs, "__call__", press)
    with pytest.raises(KeyboardInterrupt):
        rate_utility_curve(SpecialistClassifier(**QUICK), *CIRCLES, **GRID, store=tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_a_process_may_have_settings_of_its_own(curve):
    with jax.enable_x64(True):
        other = rate_utility_curve(SpecialistClassifier(**QUICK), *CIRCLES, **GRID)
    np.testing.assert_array_equal(other.expected_utility, curve.expected_utility)
