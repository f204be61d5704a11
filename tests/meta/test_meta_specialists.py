import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from pinfactory.core.training import Callback
from pinfactory.meta import MetaSpecialistClassifier, MetaSpecialistRegressor
from pinfactory.meta.evaluation import Evaluation
from pinfactory.meta.tasks import ArrayTasks, GroupedTasks, Sinusoids
from pinfactory.persistence import load

CURVES = Sinusoids(shots=10)
SMALL = {"max_iter": 500, "batch_size": 16, "random_state": 0}


@pytest.fixture(scope="module")
def unadapted():
    """Four experts whose choice is all that depends on the task."""
    settings = SMALL | {"max_iter": 1500, "adaptation": "none"}
    return MetaSpecialistRegressor(4, **settings).fit(CURVES)


@pytest.fixture(scope="module")
def regressor():
    return MetaSpecialistRegressor(2, **SMALL).fit(CURVES)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    return ArrayTasks(X, y, ways=2, shots=5, test=0.3)


@pytest.fixture(scope="module")
def classifier(digits):
    settings = SMALL | {"adaptation": "gradient", "inner_steps": 2}
    return MetaSpecialistClassifier(2, **settings).fit(digits)


def curve(amplitude=3.0, phase=1.0, n=10, seed=0):
    x = np.random.default_rng(seed).uniform(-5, 5, (n, 1))
    return x, amplitude * np.sin(x[:, 0] + phase)


class TestRegressor:
    def test_choosing_among_experts_beats_the_best_single_answer(self, unadapted):
        # The best that one answer to all curves can do is their mean, zero: E[a²]/2.
        single = (5.0**3 - 0.1**3) / (3 * 4.9) / 2
        assert unadapted.evaluate(CURVES).interval[1] < 0.7 * single

    def test_selection_does_not_collapse(self, unadapted):
        assert unadapted.information_.effective_experts > 3.0
        assert unadapted.information_.selector > 1.2
        shares = unadapted.select_tasks(_supports(500))
        assert np.bincount(shares.argmax(axis=1), minlength=4).min() > 25

    def test_a_closed_form_last_layer_learns_a_curve_from_ten_points(self, regressor):
        adapted = regressor.adapt(*curve())
        assert adapted.score(*curve(n=200, seed=1)) > 0.95

    def test_an_adapted_expert_knows_its_task_and_not_another(self, regressor):
        adapted = regressor.adapt(*curve(phase=1.0))
        assert adapted.score(*curve(phase=1.0 + np.pi, n=200, seed=1)) < 0.0

    def test_targets_come_back_in_the_shape_they_had(self, regressor):
        x, y = curve()
        assert regressor.adapt(x, y).predict(x).shape == (10,)
        mean, std = regressor.adapt(x, y[:, None]).predict(x, return_std=True)
        assert mean.shape == std.shape == (10, 1)
        assert np.all(std > 0)

    def test_support_sets_may_have_any_size(self, regressor):
        for n in (1, 3, 40):
            assert np.isfinite(regressor.adapt(*curve(n=n)).predict([[0.0]])).all()

    @pytest.mark.slow
    def test_units_do_not_matter(self):
        x = np.random.default_rng(0).uniform(-5, 5, (600, 1))
        group = np.repeat(np.arange(30), 20)
        y = np.sin(x[:, 0] + group)

        def tasks(factor):
            return GroupedTasks(factor * x, 1e3 * factor * y + 5.0, group, shots=8)

        errors = [
            MetaSpecialistRegressor(1, embedding="set", **SMALL).fit(tasks(factor)).evaluate(
                tasks(factor), 250
            ).mean / (1e3 * factor) ** 2
            for factor in (1.0, 100.0)
        ]  # fmt: skip
        assert errors[0] == pytest.approx(errors[1], rel=0.05)

    @pytest.mark.parametrize("routing", ["mixture", "best"])
    def test_evaluation_adapts_as_adapt_does(self, regressor, routing):
        tasks = Sinusoids(shots=10, queries=6)
        found = regressor.evaluate(tasks, 3, routing=routing, seed=4)
        drawn = tasks.draw(np.random.default_rng(4), 250, "test")
        for i in range(3):
            a, b, support, query = (part[i] for part in drawn)
            adapted = regressor.adapt(support[:, None], a * np.sin(support + b), routing=routing)
            error = np.mean((adapted.predict(query[:, None]) - a * np.sin(query + b)) ** 2)
            assert found.scores[i] == pytest.approx(error, rel=1e-2, abs=1e-5)

    def test_gradient_steps_improve_on_what_an_expert_knew_before(self):
        rule = {"adaptation": "gradient", "inner_steps": 3}
        model = MetaSpecialistRegressor(1, **SMALL | rule).fit(CURVES)
        gain = model.evaluate(CURVES, inner_steps=0).scores - model.evaluate(CURVES).scores
        assert gain.mean() > 5.0 * gain.std() / np.sqrt(len(gain))

    @pytest.mark.slow
    def test_sampled_selection_learns_too(self):
        settings = SMALL | {"max_iter": 1500, "adaptation": "none", "selection": "sampled"}
        model = MetaSpecialistRegressor(4, **settings).fit(CURVES)
        assert model.evaluate(CURVES).mean < 3.0
        assert model.information_.effective_experts > 3.0

    def test_the_same_seed_gives_the_same_numbers(self, regressor):
        again = clone(regressor).fit(CURVES)
        assert again.evaluate(CURVES, 250).mean == regressor.evaluate(CURVES, 250).mean

    def test_a_file_brings_back_the_same_learner(self, regressor, tmp_path):
        regressor.save(tmp_path / "learner.pin")
        restored = load(tmp_path / "learner.pin")
        x, y = curve()
        np.testing.assert_array_equal(
            restored.adapt(x, y).predict(x), regressor.adapt(x, y).predict(x)
        )
        assert restored.information_.selector == regressor.information_.selector
        assert restored.get_params() == regressor.get_params()

    def test_callbacks_watch_training(self):
        class Watch(Callback):
            steps = ()

            def chunk(self, progress, run):
                self.steps = (*self.steps, progress.step)

        watch = Watch()
        MetaSpecialistRegressor(2, **SMALL).fit(CURVES, callbacks=[watch])
        assert watch.steps == (250, 500)


class TestClassifier:
    def test_tells_unseen_digits_apart(self, classifier, digits):
        assert classifier.evaluate(digits).interval[0] > 0.8

    def test_adapts_to_labels_of_any_type(self, classifier):
        X, y = load_digits(return_X_y=True)
        zeros, ones = X[y == 0], X[y == 1]
        words = np.repeat(["one", "nought"], 5)
        adapted = classifier.adapt(np.concatenate([ones[:5], zeros[:5]]), words)
        assert adapted.classes_.tolist() == ["nought", "one"]
        assert np.mean(adapted.predict(zeros[5:]) == "nought") > 0.8
        np.testing.assert_allclose(adapted.predict_proba(ones).sum(axis=1), 1.0, rtol=1e-6)

    def test_information_is_within_its_bounds(self, classifier):
        information = classifier.information_
        assert 0.0 <= information.selector <= 1.0
        assert 0.0 <= information.overall <= 1.0 + 1e-6
        assert information.responsibility.sum() == pytest.approx(1.0, abs=1e-5)

    def test_responsibilities_are_a_distribution(self, classifier):
        X, y = load_digits(n_class=2, return_X_y=True)
        shares = classifier.responsibilities(X[:20], y[:20])
        assert shares.shape == (2,)
        assert shares.sum() == pytest.approx(1.0, abs=1e-5)

    def test_what_adapts_is_an_ordinary_estimator(self, classifier):
        X, y = load_digits(n_class=2, return_X_y=True)
        adapted = classifier.adapt(X[:20], y[:20])
        scores = cross_val_score(adapted, X[:60], y[:60], cv=3)
        assert scores.mean() > 0.8

    def test_a_class_without_samples_is_refused(self, classifier):
        with pytest.raises(ValueError, match=r"each of 2 classes, .* but got 1"):
            classifier.adapt(np.zeros((3, 64)), ["a", "a", "a"])


class TestEvaluation:
    def test_the_interval_covers_the_mean_19_times_of_20(self):
        random = np.random.default_rng(0)
        covered = 0
        for _ in range(2000):
            low, high = Evaluation(random.exponential(size=1000)).interval
            covered += low < 1.0 < high
        assert covered / 2000 == pytest.approx(0.95, abs=0.015)

    def test_learners_are_compared_on_the_same_tasks(self, regressor, unadapted):
        twice = [regressor.evaluate(CURVES, 300).scores for _ in range(2)]
        np.testing.assert_array_equal(*twice)
        assert len(twice[0]) == 300


class TestErrors:
    def test_what_is_no_distribution_of_tasks_is_refused(self):
        with pytest.raises(TypeError, match="distribution of tasks"):
            MetaSpecialistRegressor().fit(np.zeros((3, 2)))

    def test_labels_are_for_the_classifier_and_numbers_for_the_regressor(self, digits):
        with pytest.raises(ValueError, match="use MetaSpecialistClassifier"):
            MetaSpecialistRegressor().fit(digits)
        with pytest.raises(ValueError, match="use MetaSpecialistRegressor"):
            MetaSpecialistClassifier().fit(CURVES)

    def test_nothing_works_before_fit(self):
        model = MetaSpecialistRegressor()
        for call in (
            lambda: model.adapt(*curve()),
            lambda: model.evaluate(CURVES),
            lambda: model.save("nowhere.pin"),
        ):
            with pytest.raises(NotFittedError):
                call()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"n_experts": 0}, "`n_experts` must be an integer of at least 1"),
            ({"adaptation": "magic"}, "`adaptation` must be one of"),
            ({"selection": "lottery"}, "`selection` must be one of"),
            ({"utility": "fame"}, "`utility` must be one of"),
            ({"selector_bits": 3.0}, "`selector_bits` must be at most"),
            ({"balance": -1.0}, "`balance` must be a number of at least 0"),
            ({"adaptation": "gradient", "inner_steps": 0}, "`inner_steps` must be an integer"),
        ],
    )
    def test_wrong_settings_are_refused_in_words(self, change, message):
        with pytest.raises(ValueError, match=message):
            MetaSpecialistRegressor(**{"n_experts": 2} | change).fit(CURVES)

    def test_support_sets_must_fit_the_tasks_learned_from(self, regressor):
        with pytest.raises(ValueError, match=r"samples of shape \(1,\)"):
            regressor.adapt(np.zeros((3, 2)), np.zeros(3))
        with pytest.raises(ValueError, match="`y` must hold 1 finite number"):
            regressor.adapt(np.zeros((3, 1)), [0.0, np.nan, 1.0])
        with pytest.raises(ValueError, match="`X` must be finite"):
            regressor.adapt([[np.inf]], [0.0])

    def test_steps_are_for_rules_that_take_steps(self, regressor):
        with pytest.raises(ValueError, match="`inner_steps` must be None"):
            regressor.evaluate(CURVES, inner_steps=10)

    def test_a_histogram_is_for_one_feature(self, digits):
        with pytest.raises(ValueError, match="`embedding` must be 'set'"):
            MetaSpecialistClassifier(embedding="histogram").fit(digits)


def _supports(n_tasks):
    import jax

    drawn = CURVES.draw(np.random.default_rng(1), n_tasks)
    return jax.vmap(CURVES.build)(jax.device_put(drawn)).support
