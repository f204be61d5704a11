"""What both committees owe to scikit-learn, and what they do with bad input."""

from unittest import SkipTest

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator

from pinfactory import SpecialistClassifier, SpecialistRegressor, base
from pinfactory.core.constraints import Scheduled

COMMITTEES = [SpecialistClassifier, SpecialistRegressor]
QUICK = {"max_iter": 200, "n_init": 1}
# Those that differ most from what other tests promise; the others are slow to compile.
IMPORTANT = {
    "check_estimators_nan_inf",
    "check_fit2d_1sample",
    "check_get_params_invariance",
    "check_methods_sample_order_invariance",
    "check_methods_subset_invariance",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_requires_y_none",
    "check_sample_weight_equivalence_on_dense_data",
}

X = np.random.default_rng(0).normal(size=(60, 2))
Y = (X[:, 0] > 0).astype(int)


def name_of(check):
    return getattr(check, "func", check).__name__


def run(checked, chosen):
    """Run scikit-learn's checks and return the names of those that ran."""
    ran = []
    for estimator, check in estimator_checks_generator(checked):
        if chosen(name_of(check)):
            try:
                check(estimator)
            except SkipTest as skipped:
                if "SCIPY_ARRAY_API" not in str(skipped):
                    raise
            else:
                ran.append(name_of(check))
    return ran


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("committee", COMMITTEES)
def test_important_checks_of_scikit_learn_pass(committee):
    assert set(run(committee(**QUICK), lambda name: name in IMPORTANT)) == IMPORTANT


@pytest.mark.slow
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("committee", COMMITTEES)
def test_all_other_checks_of_scikit_learn_pass(committee):
    # Every check has data of another shape: without held-out samples there is less to compile.
    checked = committee(**QUICK, early_stopping=False)
    others = run(checked, lambda name: name not in IMPORTANT)
    # The number depends on the version of scikit-learn; a wrong tag would leave a handful.
    assert len(others) + len(IMPORTANT) >= 55


# ------------------------------------------------------------------------------------- settings

BAD_SETTINGS = [
    ({"n_experts": 0}, "`n_experts` must be an integer of at least 1, but got 0"),
    ({"n_experts": 2.5}, "`n_experts` must be an integer of at least 1, but got 2.5"),
    ({"expert": "quadratic"}, "`expert` must be one of 'constant', 'linear', 'mlp', but got"),
    ({"selector": "forest"}, "`selector` must be one of 'tree', 'mlp', 'linear', but got 'forest'"),
    ({"start": "warm"}, "`start` must be one of 'auto', 'tree', 'random', but got 'warm'"),
    ({"objective": "J"}, "`objective` must be one of 'auto', 'free_energy', 'likelihood', but got"),
    ({"expert": "mlp", "expert_hidden": (0,)}, "`expert_hidden` must be an integer of at least 1"),
    (
        {"selector": "mlp", "selector_hidden": "10"},
        "`selector_hidden` must be a tuple of layer widths, but got '10'",
    ),
    ({"beta_selector": 0.0}, "`beta_selector` must be a number above 0.0, but got 0.0"),
    ({"beta_selector": -1.0}, "`beta_selector` must be a number above 0.0, but got -1.0"),
    ({"beta_expert": float("nan")}, "`beta_expert` must be a number above 0.0, but got nan"),
    ({"beta_expert": float("inf")}, "`beta_expert` must be a number above 0.0, but got inf"),
    ({"beta_expert": "much"}, "`beta_expert` must be a number above 0.0, but got 'much'"),
    ({"beta_selector": Scheduled(-1.0, 5.0, 10, "linear")}, "`beta_selector.start` must be a num"),
    ({"n_experts": 3, "selector_bits": 1.6}, "`selector_bits` must be at most log2(n_experts) = "),
    ({"selector_bits": -0.1}, "`selector_bits` must be a number of at least 0.0, but got -0.1"),
    ({"expert_bits": -0.1}, "`expert_bits` must be a number of at least 0.0, but got -0.1"),
    ({"max_iter": 0}, "`max_iter` must be an integer of at least 1, but got 0"),
    ({"batch_size": 0}, "`batch_size` must be an integer of at least 1, but got 0"),
    ({"n_init": 0}, "`n_init` must be an integer of at least 1, but got 0"),
    ({"n_iter_no_change": 0}, "`n_iter_no_change` must be an integer of at least 1, but got 0"),
    ({"learning_rate": 0.0}, "`learning_rate` must be a number above 0.0, but got 0.0"),
    ({"learning_rate": -1.0}, "`learning_rate` must be a number above 0.0, but got -1.0"),
    ({"weight_decay": -1.0}, "`weight_decay` must be a number of at least 0.0, but got -1.0"),
    ({"momentum_expert": 1.5}, "`momentum_expert` must be a number of at least 0.0 and at most 1"),
    ({"validation_fraction": 0.0}, "`validation_fraction` must be a number above 0.0 and at most"),
    ({"validation_fraction": 1.0}, "`validation_fraction` must be a number above 0.0 and at most"),
    ({"early_stopping": "never"}, "`early_stopping` must be one of True, False, 'auto', 'folds'"),
]


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_bad_settings_are_named(committee, settings, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the message holds brackets)
        committee().set_params(**QUICK).set_params(**settings).fit(X, Y)
    assert message in str(error.value)


def test_settings_of_one_committee_are_named():
    with pytest.raises(ValueError, match="`prior` must be one of 'running', 'uniform', but got"):
        SpecialistClassifier(prior="flat").fit(X, Y)
    with pytest.raises(ValueError, match="`utility` must be one of 'likelihood', 'student_t'"):
        SpecialistRegressor(utility="accuracy").fit(X, Y)
    with pytest.raises(ValueError, match="`class_weight` must hold no negative weight"):
        SpecialistClassifier(class_weight={0: -1.0}).fit(X, Y)


# ----------------------------------------------------------------------------------------- data


@pytest.fixture(scope="module", params=COMMITTEES)
def fitted(request):
    return request.param(n_experts=2, early_stopping=False, **QUICK).fit(X, Y)


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_and_infinite_inputs_are_refused(committee, bad):
    x = X.copy()
    x[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        committee(**QUICK).fit(x, Y)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_missing_and_infinite_targets_are_refused(bad):
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        SpecialistRegressor(**QUICK).fit(X, np.where(Y == 1, bad, 0.0))


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:, 0], Y, "Expected 2D array"),
        (X[None], Y, "dim 3"),
        (X, Y[:-1], "inconsistent numbers of samples"),
        (X[:0], Y[:0], "0 sample"),
        (X[:, :0], Y, "0 feature"),
    ],
)
def test_wrong_shapes_are_refused(committee, x, y, message):
    with pytest.raises(ValueError, match=message):
        committee(**QUICK).fit(x, y)


def test_one_class_is_no_task():
    with pytest.raises(ValueError, match="at least two classes, but got one class"):
        SpecialistClassifier(**QUICK).fit(X, np.ones(60))
    with pytest.raises(ValueError, match="at least two classes, but got one class"):
        SpecialistClassifier(**QUICK).fit(X, Y, sample_weight=Y)


def test_continuous_targets_are_no_classes():
    with pytest.raises(ValueError, match="Unknown label type"):
        SpecialistClassifier(**QUICK).fit(X, X[:, 0])


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-np.ones(60), "[Nn]egative"),
        (np.zeros(60), "zero"),
        (np.ones(59), "sample_weight.shape"),
        (np.full(60, np.nan), "NaN"),
    ],
)
def test_bad_weights_are_refused(committee, weight, message):
    with pytest.raises(ValueError, match=message):
        committee(**QUICK).fit(X, Y, sample_weight=weight)


@pytest.mark.parametrize("committee", COMMITTEES)
def test_unfitted_committees_say_so(committee, tmp_path):
    questions = ("predict", "responsibilities", "assign")
    for question in questions:
        with pytest.raises(NotFittedError):
            getattr(committee(), question)(X)
    with pytest.raises(NotFittedError):
        committee().expert_predict(X, 0)
    with pytest.raises(NotFittedError):
        committee().save(tmp_path / "nothing.pin")


def test_unfitted_densities_say_so():
    with pytest.raises(NotFittedError):
        SpecialistRegressor().score_samples(X, Y)
    with pytest.raises(NotFittedError):
        SpecialistRegressor().sample(X)


def test_other_features_are_refused(fitted):
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
        fitted.predict(np.ones((5, 3)))
    with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
        fitted.partial_fit(np.ones((5, 3)), Y[:5])


def test_a_refit_that_fails_changes_nothing(fitted, monkeypatch):
    before, answers = dict(vars(fitted)), fitted.predict(X)
    # After the classes and the scales of other data were found, before anything is learned.
    other, labels = 100.0 * np.c_[X, X], Y + 5

    def fail(*_, **__):
        raise FloatingPointError("not finite")

    monkeypatch.setattr(base, "train", fail)
    with pytest.raises(FloatingPointError):
        fitted.fit(other, labels)
    assert vars(fitted).keys() == before.keys()
    assert all(vars(fitted)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(fitted.predict(X), answers)


def test_unknown_ways_and_experts_are_named(fitted):
    with pytest.raises(ValueError, match="`routing` must be one of 'mixture', 'best', 'sampled'"):
        fitted._routed(X, "random")
    with pytest.raises(ValueError, match="`expert` must be an integer of at least 0, but got -1"):
        fitted.expert_predict(X, -1)
    with pytest.raises(ValueError, match="`expert` must be below 2, but got 2"):
        fitted.expert_predict(X, 2)


def test_inputs_beyond_all_bounds_get_finite_answers(fitted):
    far = np.asarray([[1e30, -1e30], [1e300, 0.0]])
    predicted = fitted.predict(far)
    assert predicted.shape == (2,)
    assert np.isfinite(predicted).all()
    np.testing.assert_allclose(fitted.responsibilities(far).sum(axis=1), 1.0, rtol=1e-5)


def test_a_decay_that_no_training_survives_is_an_error_and_changes_nothing():
    committee = SpecialistRegressor(2, weight_decay=1e6, random_state=0, **QUICK)
    with pytest.raises(FloatingPointError, match="stopped being finite at step"):
        committee.fit(X, X[:, 0])
    assert not hasattr(committee, "state_")


@pytest.mark.parametrize("committee", COMMITTEES)
def test_more_experts_than_samples_work_even_with_a_validation_part(committee):
    settings = {"n_experts": 4, "early_stopping": True, "validation_fraction": 0.9, **QUICK}
    few = committee(**settings).fit(X[:3], [0, 1, 0])
    assert few.responsibilities(X).shape == (60, 4)
    assert np.isfinite(few.predict(X)).all()


SMALL = {"n_experts": 2, "early_stopping": False, "random_state": 0, **QUICK}


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_units_of_inputs_do_not_matter(committee, scale):
    plain = committee(**SMALL).fit(X, Y).score(X, Y)
    x = X * [1.0, scale]
    assert committee(**SMALL).fit(x, Y).score(x, Y) == pytest.approx(plain, abs=0.1)


@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_units_of_targets_do_not_matter(scale):
    plain = SpecialistRegressor(**SMALL).fit(X, Y)
    scaled = SpecialistRegressor(**SMALL).fit(X, Y * scale)
    assert scaled.score(X, Y * scale) == pytest.approx(plain.score(X, Y), abs=0.1)
    likelihood = scaled.score_samples(X, Y * scale).mean() + np.log(scale)
    assert likelihood == pytest.approx(plain.score_samples(X, Y).mean(), abs=0.2)


@pytest.mark.parametrize("committee", COMMITTEES)
@pytest.mark.parametrize("constant", [0.0, 1e8])
def test_constant_columns_do_no_harm(committee, constant):
    x = np.column_stack([X[:, 0], np.full(60, constant)])
    plain = committee(**SMALL).fit(X, Y).score(X, Y)
    assert committee(**SMALL).fit(x, Y).score(x, Y) > plain - 0.1
