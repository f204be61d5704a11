import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score

from pinfactory.core.training import Callback, TrainingInterrupted
from pinfactory.meta import MetaSpecialistClassifier, MetaSpecialistRegressor
from pinfactory.meta.evaluation import TaskScores
from pinfactory.meta.tasks import ArrayTasks, GroupedTasks, Sinusoids
from pinfactory.persistence import load

CURVES = Sinusoids(shots=10)
# The error of the best single answer to all curves, their mean, which is zero: E[a²]/2.
ONE_ANSWER = (5.0**3 - 0.1**3) / (3 * 4.9) / 2
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
    settings = SMALL | {"max_iter": 200, "adaptation": "gradient", "inner_steps": 2}
    return MetaSpecialistClassifier(2, **settings).fit(digits)


def curve(amplitude=3.0, phase=1.0, n=10, seed=0):
    x = np.random.default_rng(seed).uniform(-5, 5, (n, 1))
    return x, amplitude * np.sin(x[:, 0] + phase)


class TestRegressor:
    def test_choosing_among_experts_beats_the_best_single_answer(self, unadapted):
        assert unadapted.evaluate(CURVES).interval[1] < 0.7 * ONE_ANSWER

    def test_selection_does_not_collapse(self, unadapted):
        assert unadapted.information_.effective_experts > 3.0
        assert unadapted.information_.selector > 1.2
        shares = unadapted.responsibilities(*_supports(500))
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

    def test_a_budget_that_was_missed_is_warned_of_with_the_number_reached(self):
        settings = SMALL | {"max_iter": 2, "adaptation": "none", "expert_bits": 0.0}
        model = MetaSpecialistRegressor(2, selector_bits=0.9, **settings)
        with pytest.warns(UserWarning, match="bits were reached") as told:
            model.fit(CURVES)
        selector, experts = (str(warning.message) for warning in told)
        reached = model.information_
        assert f"`selector_bits` is 0.9, but {reached.selector:.3g} bits were reached" in selector
        assert f"`expert_bits` is 0, but {reached.experts:.3g} bits were reached" in experts

    @pytest.mark.slow
    @pytest.mark.optimised
    def test_a_budget_is_met_without_a_warning(self):
        settings = SMALL | {"max_iter": 6000, "adaptation": "none"}
        model = MetaSpecialistRegressor(4, selector_bits=1.0, **settings).fit(CURVES)
        assert model.information_.selector == pytest.approx(1.0, rel=0.05)

    @pytest.mark.slow
    @pytest.mark.optimised
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
    @pytest.mark.optimised
    def test_one_sampled_expert_per_task_learns_too(self):
        """Better than one answer to all curves, whose error is 4.2."""
        settings = SMALL | {"max_iter": 3000, "adaptation": "none", "expectation": "sampled"}
        model = MetaSpecialistRegressor(4, **settings).fit(CURVES)
        assert model.evaluate(CURVES).interval[1] < 0.8 * ONE_ANSWER
        assert model.effective_experts_ > 1.5

    def test_the_same_seed_gives_the_same_numbers(self, regressor):
        again = clone(regressor).fit(CURVES)
        assert again.evaluate(CURVES, 250).mean == regressor.evaluate(CURVES, 250).mean

    def test_errors_of_several_outputs_are_in_their_own_units(self):
        """Outputs of size 1 and 1,000: the mean over both of squared errors, computed by hand."""
        random = np.random.default_rng(0)
        x, group = random.uniform(-1, 1, (400, 1)), np.repeat(np.arange(20), 20)
        slope = random.normal(size=(20, 2))[group]
        y = np.column_stack([slope[:, 0] * x[:, 0], 1000.0 * slope[:, 1] * x[:, 0] ** 2])
        tasks = GroupedTasks(x, y, group, shots=5, queries=10)
        model = MetaSpecialistRegressor(1, **SMALL | {"max_iter": 20}).fit(tasks)
        found = model.evaluate(tasks, 4, seed=3).scores
        drawn = tasks.draw(np.random.default_rng(3), 250, "test")
        for i in range(4):
            support, query = drawn.support[i], drawn.query[i]
            answer = model.adapt(x[support], y[support]).predict(x[query])
            assert found[i] == pytest.approx(np.mean((answer - y[query]) ** 2), rel=1e-2)

    def test_a_file_brings_back_the_same_learner(self, regressor, tmp_path):
        regressor.save(tmp_path / "learner.pin")
        restored = load(tmp_path / "learner.pin")
        x, y = curve()
        np.testing.assert_array_equal(
            restored.adapt(x, y).predict(x), regressor.adapt(x, y).predict(x)
        )
        assert restored.information_.selector == regressor.information_.selector
        assert restored.get_params() == regressor.get_params()

    def test_training_goes_on_from_its_checkpoint(self, regressor, tmp_path):
        class Stop(Callback):
            def chunk(self, progress, run):
                return True

        file = tmp_path / "half.pin"
        half = clone(regressor).fit(CURVES, callbacks=Stop(), checkpoint=file)
        assert half.n_iter_ == 250
        whole = clone(regressor).fit(CURVES, checkpoint=file)
        assert whole.n_iter_ == 500
        assert whole.evaluate(CURVES, 250).mean == regressor.evaluate(CURVES, 250).mean

    def test_a_finished_training_learns_on_if_more_steps_are_asked_for(self, tmp_path):
        settings = SMALL | {"max_iter": 20}
        short = MetaSpecialistRegressor(2, **settings).fit(CURVES, checkpoint=tmp_path / "run.pin")
        settings["max_iter"] = 40
        longer = MetaSpecialistRegressor(2, **settings).fit(CURVES, checkpoint=tmp_path / "run.pin")
        assert longer.n_iter_ == 40
        # Rates fall to zero at the end that is asked for, not at the earlier one.
        rate = longer.state_.learning_rate
        first, middle, last = (float(rate(jnp.asarray(step))) for step in (0, 20, 40))
        assert (middle, last) == (pytest.approx(first / 2), 0.0)
        before, after = (each.responsibilities(*_supports(20)) for each in (short, longer))
        assert not np.array_equal(before, after)

    def test_a_refit_that_fails_or_is_interrupted_at_once_changes_nothing(self, digits):
        class Break(Callback):
            def start(self, run, total):
                raise KeyboardInterrupt

        model = MetaSpecialistRegressor(2, **SMALL | {"max_iter": 2}).fit(CURVES)
        before = dict(vars(model))
        with pytest.raises(KeyboardInterrupt):
            model.fit(Sinusoids(shots=3), callbacks=Break())
        with pytest.raises(ValueError, match="use MetaSpecialistClassifier"):
            model.fit(digits)
        assert vars(model).keys() == before.keys()
        assert all(vars(model)[name] is value for name, value in before.items())

    def test_an_interrupt_keeps_what_was_learned_and_goes_on(self):
        class Break(Callback):
            def chunk(self, progress, run):
                raise KeyboardInterrupt

        model = MetaSpecialistRegressor(2, **SMALL)
        with pytest.warns(UserWarning, match="kept"), pytest.raises(TrainingInterrupted):
            model.fit(CURVES, callbacks=Break())
        assert model.n_iter_ == 250
        assert np.isfinite(model.evaluate(CURVES, 250).mean)

    def test_a_warm_start_goes_on_from_what_was_learned(self, regressor, tmp_path):
        """Steps of no size leave it as it was; without a warm start it begins anew."""
        model = clone(regressor).set_params(max_iter=20).fit(CURVES)
        learned = model.evaluate(CURVES, 250).mean
        model.set_params(warm_start=True, learning_rate=0.0, max_iter=1).fit(Sinusoids(shots=5))
        assert model.evaluate(CURVES, 250).mean == learned
        assert model.set_params(warm_start=False).fit(CURVES).evaluate(CURVES, 250).mean != learned
        file = tmp_path / "run.pin"
        model.fit(CURVES, checkpoint=file)
        with pytest.raises(ValueError, match="belongs to warm_start None, but this run"):
            model.set_params(warm_start=True).fit(CURVES, checkpoint=file)
        with pytest.raises(ValueError, match="a warm start must have tasks"):
            model.set_params(warm_start=True).fit(two_inputs())

    def test_fixed_clusters_may_take_the_place_of_the_selector(self, tmp_path):
        settings = SMALL | {"selector": "kmeans", "adaptation": "none"}
        model = MetaSpecialistRegressor(4, **settings).fit(CURVES)
        shares = model.responsibilities(*_supports(200))
        assert np.all(shares.max(axis=1) > 0.999)
        assert len(np.unique(shares.argmax(axis=1))) == 4
        assert model.evaluate(CURVES).interval[1] < ONE_ANSWER
        model.save(tmp_path / "fixed.pin")
        restored = load(tmp_path / "fixed.pin").responsibilities(*_supports(200))
        np.testing.assert_array_equal(restored, shares)

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
            low, high = TaskScores(random.exponential(size=1000)).interval
            covered += low < 1.0 < high
        assert covered / 2000 == pytest.approx(0.95, abs=0.015)

    def test_tasks_about_the_same_thing_count_as_one(self):
        random = np.random.default_rng(0)
        means = random.normal(size=30)
        scores = means[:, None] + random.normal(size=(30, 50))
        found = TaskScores(scores.ravel(), np.repeat(np.arange(30), 50))
        # Groups of one size are as good as their means.
        expected = scores.mean(axis=1).std(ddof=1) / np.sqrt(30)
        assert found.standard_error == pytest.approx(expected)
        alone = TaskScores(scores.ravel())
        assert alone.standard_error == pytest.approx(scores.std(ddof=1) / np.sqrt(1500))
        assert np.isnan(TaskScores(np.ones(3), np.zeros(3, int)).standard_error)

    def test_tasks_say_what_they_are_about(self, regressor):
        class Paired(Sinusoids):
            def subjects(self, recipes):
                return np.arange(len(jax.tree.leaves(recipes)[0])) // 2

        assert regressor.evaluate(CURVES, 20).groups is None
        found = regressor.evaluate(Paired(shots=CURVES.shots), 20).groups
        np.testing.assert_array_equal(found, np.arange(20) // 2)

    def test_learners_are_compared_on_the_same_tasks(self, regressor, unadapted):
        twice = [regressor.evaluate(CURVES, 300).scores for _ in range(2)]
        np.testing.assert_array_equal(*twice)
        assert len(twice[0]) == 300


class TestErrors:
    def test_what_is_no_distribution_of_tasks_is_refused(self):
        with pytest.raises(TypeError, match="distribution of tasks"):
            MetaSpecialistRegressor().fit(np.zeros((3, 2)))

    @pytest.mark.usefixtures("types_unchecked")
    @pytest.mark.parametrize("method", ["evaluate", "information"])
    def test_nothing_is_no_distribution_of_tasks(self, regressor, method):
        with pytest.raises(TypeError, match=r"distribution of tasks with .* but got NoneType"):
            getattr(regressor, method)(None)
        with pytest.raises(TypeError, match=r"with .* but got the class Sinusoids"):
            getattr(regressor, method)(Sinusoids)

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
            ({"expectation": "lottery"}, "`expectation` must be one of"),
            ({"selector": "dice"}, "`selector` must be one of"),
            ({"expert": "relu"}, "`expert` must be one of 'auto', 'mlp', 'conv'"),
            ({"expert": "conv"}, "`expert` must be 'mlp' or a function"),
            ({"adaptation": "kernel"}, "`adaptation` must be another than 'kernel'"),
            ({"embedding": "conv"}, "`embedding` must be 'set'"),
            ({"warmup_fraction": 2.0}, "`warmup_fraction` must be a number"),
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
        for nothing in (0, [], np.nan):
            with pytest.raises(ValueError, match=r"`X` must be some samples of shape \(1,\)"):
                regressor.adapt(nothing, nothing)
            with pytest.raises(ValueError, match=r"`X` must be samples of shape \(1,\)"):
                regressor.responsibilities(nothing, nothing)
        many = np.zeros((2, 3, 1))
        with pytest.raises(ValueError, match=r"`y` for each, .* \(2, 3, 1\) and \(2, 4, 1\)"):
            regressor.responsibilities(many, np.zeros((2, 4, 1)))
        for X, y in ((many * np.nan, many), (many, many + np.inf)):
            with pytest.raises(ValueError, match="must be finite"):
                regressor.responsibilities(X, y)

    @pytest.mark.parametrize(("routing", "y"), [("mixture", np.nan), ("none", 0.0)])
    def test_a_refit_of_what_adapted_that_fails_changes_nothing(self, regressor, routing, y):
        adapted = regressor.adapt(*curve())
        before = adapted.predict([[0.5]])
        with pytest.raises(ValueError, match="must"):
            adapted.set_params(routing=routing).fit(np.zeros((3, 1)), np.full((3, 1), y))
        adapted.set_params(routing="mixture")
        np.testing.assert_array_equal(adapted.predict([[0.5]]), before)

    def test_inputs_too_far_from_all_tasks_give_an_error_instead_of_nan(self):
        rule = {"adaptation": "gradient", "inner_steps": 2, "max_iter": 1}
        model = MetaSpecialistRegressor(2, **SMALL | rule).fit(CURVES)
        x = np.linspace(-1e30, 1e30, 10)[:, None]
        with pytest.raises(ValueError, match="not finite"):
            model.adapt(x, np.sin(x[:, 0])).predict(x)

    def test_far_inputs_give_numbers_or_say_why_not(self, regressor):
        x = np.linspace(-18_262.0, 18_262.0, 10)[:, None]

        def answer():
            try:
                return regressor.adapt(x, np.sin(x[:, 0])).predict(x)
            except ValueError as error:
                return str(error)

        found = answer()
        assert "not finite" in found if isinstance(found, str) else np.isfinite(found).all()

    def test_steps_are_for_rules_that_take_steps(self, regressor):
        with pytest.raises(ValueError, match="`inner_steps` must be None"):
            regressor.evaluate(CURVES, inner_steps=10)

    def test_a_histogram_is_for_one_feature(self, digits):
        with pytest.raises(ValueError, match="`embedding` must be 'set'"):
            MetaSpecialistClassifier(embedding="histogram").fit(digits)


def two_inputs():
    x, group = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(np.arange(6), 10)
    return GroupedTasks(x, x[:, :1], group, shots=2, queries=3)


def _supports(n_tasks):
    drawn = CURVES.draw(np.random.default_rng(1), n_tasks)
    return jax.vmap(CURVES.build)(jax.device_put(drawn)).support
