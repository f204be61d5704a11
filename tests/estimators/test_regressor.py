import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import simpson
from scipy.special import logsumexp
from scipy.stats import norm

import pinfactory
from pinfactory import SpecialistRegressor

SETTINGS = {
    "n_experts": 2,
    "beta_selector": 25.0,
    "beta_expert": 100.0,
    "max_iter": 2000,
    "batch_size": 32,
    "learning_rate": 0.01,
    "early_stopping": False,
    "n_init": 4,
    "random_state": 0,
}


def quick(**settings):
    return SpecialistRegressor().set_params(**{**SETTINGS, **settings})


def bend(n, seed=0):
    """A bent line with noise, in units far from one."""
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, n)
    return 1e3 * x[:, None] + 5e3, 1e-2 * (np.abs(x) + 0.05 * random.normal(size=n)) + 3.0


X, Y = bend(60)
Y2 = np.column_stack([Y, -50.0 * Y + X[:, 0] / 100])


@pytest.fixture(scope="module")
def committee():
    return quick().fit(X, Y)


@pytest.fixture(scope="module")
def two_outputs():
    return quick().fit(X, Y2)


def expert_answers(committee, y):
    """Return mean and deviation of every linear expert's answers to X, in NumPy."""
    z = (X - X.mean(axis=0)) / X.std(axis=0)
    experts = committee.state_.model.experts
    mean = np.einsum("moi,ni->nmo", np.asarray(experts.network.weight, float), z)
    mean = mean + np.asarray(experts.network.bias, float)
    log_scale = np.broadcast_to(np.asarray(experts.log_scale, float), mean.shape)
    return mean * y.std(axis=0) + y.mean(axis=0), np.exp(5 * np.tanh(log_scale / 5)) * y.std(axis=0)


def test_linear_experts_together_learn_what_one_cannot(committee):
    assert committee.score(*bend(500, seed=1)) > 0.95
    assert committee.predict(X).shape == (60,)


# ---------------------------------------------------------------------------- several outputs


def test_every_output_is_learned(two_outputs):
    assert two_outputs.predict(X).shape == (60, 2)
    assert two_outputs.score(X, Y2) > 0.95
    assert two_outputs.expert_predict(X, 1).shape == (60, 2)


def test_one_column_stays_a_column():
    assert quick(max_iter=1).fit(X, Y[:, None]).predict(X).shape == (60, 1)


def test_mean_and_deviation_obey_the_laws_of_total_expectation_and_variance(two_outputs):
    share = two_outputs.responsibilities(X)[:, :, None]
    means, deviations = expert_answers(two_outputs, Y2)
    mean = (share * means).sum(axis=1)
    variance = (share * (deviations**2 + (means - mean[:, None]) ** 2)).sum(axis=1)
    told_mean, told_std = two_outputs.predict(X, return_std=True)
    np.testing.assert_allclose(told_mean, mean, atol=1e-4 * Y2.std())
    np.testing.assert_allclose(told_std, np.sqrt(variance), rtol=1e-3)


def test_best_is_the_answer_of_the_most_responsible_expert(two_outputs):
    best = two_outputs.responsibilities(X).argmax(axis=1)
    means, deviations = (a[np.arange(60), best] for a in expert_answers(two_outputs, Y2))
    told_mean, told_std = two_outputs.predict(X, return_std=True, routing="best")
    np.testing.assert_allclose(told_mean, means, rtol=1e-4)
    np.testing.assert_allclose(told_std, deviations, rtol=1e-3)


def test_expert_predict_is_the_opinion_of_one_expert(two_outputs):
    means, _ = expert_answers(two_outputs, Y2)
    np.testing.assert_allclose(two_outputs.expert_predict(X, 1), means[:, 1], rtol=1e-4)


# ------------------------------------------------------------------------- predictive density


def test_score_samples_is_the_log_of_the_mixture(two_outputs):
    log_share = np.log(two_outputs.responsibilities(X))
    means, deviations = expert_answers(two_outputs, Y2)
    log_y = norm.logpdf(Y2[:, None, :], means, deviations).sum(axis=2)
    expected = logsumexp(log_share + log_y, axis=1)
    np.testing.assert_allclose(two_outputs.score_samples(X, Y2), expected, atol=1e-2)


def test_without_targets_the_prediction_itself_is_scored(two_outputs):
    np.testing.assert_allclose(
        two_outputs.score_samples(X), two_outputs.score_samples(X, two_outputs.predict(X))
    )


@pytest.mark.parametrize("utility", ["likelihood", "squared_error"])
def test_the_density_integrates_to_one_in_the_units_of_the_user(utility):
    density = quick(utility=utility).fit(X, Y)
    mean, std = density.predict(X[:3], return_std=True)
    for x, centre, width in zip(X[:3], mean, std, strict=True):
        y = np.linspace(centre - 12 * width, centre + 12 * width, 501)
        p = np.exp(density.score_samples(np.repeat(x[None], 501, axis=0), y))
        assert simpson(p, x=y) == pytest.approx(1.0, abs=1e-3)


def test_samples_have_the_moments_of_the_prediction(committee):
    n = 20_000
    mean, std = committee.predict(X[:1], return_std=True)
    drawn = committee.sample(np.repeat(X[:1], n, axis=0))
    assert drawn.shape == (n,)
    assert drawn.mean() == pytest.approx(mean[0], abs=5 * std[0] / np.sqrt(n))
    assert drawn.std() == pytest.approx(std[0], rel=0.05)


def test_information_is_that_of_the_core_on_the_training_data(committee):
    share = committee.responsibilities(X)
    prior = share.mean(axis=0)
    bits = (share * np.log2(share / prior)).sum(axis=1).mean()
    told = committee.information_
    assert told.selector == pytest.approx(bits, abs=1e-3)
    # With a Gaussian prior of the same moments, experts pay H(prior) − E[H(answer)].
    means, deviations = (a[:, :, 0] for a in expert_answers(committee, Y[:, None]))
    weight = share / share.sum(axis=0)
    centre = (weight * means).sum(axis=0)
    spread = np.sqrt((weight * (deviations**2 + (means - centre) ** 2)).sum(axis=0))
    paid = np.log2(spread) - (weight * np.log2(deviations)).sum(axis=0)
    np.testing.assert_allclose(told.per_expert, paid, atol=1e-2)
    assert told.experts == pytest.approx(prior @ paid, abs=1e-2)
    assert 0 < told.overall < told.selector + told.experts + 0.1


# --------------------------------------------------------------------- squared error and Huber


@pytest.mark.parametrize("utility", ["squared_error", "huber"])
def test_errors_serve_as_utilities(utility):
    assert quick(utility=utility).fit(X, Y).score(*bend(500, seed=1)) > 0.9


def test_student_t_answers_suit_heavy_tails_and_know_their_deviation():
    random = np.random.default_rng(0)
    x = random.normal(size=400)
    noise = 0.5 * random.standard_t(3.0, size=400)
    new_x, new_noise = random.normal(size=2000), 0.5 * random.standard_t(3.0, size=2000)
    heavy, light = (
        quick(utility=utility, n_experts=1).fit(x[:, None], 2.0 * x + noise)
        for utility in ("student_t", "likelihood")
    )
    scores = [m.score_samples(new_x[:, None], 2.0 * new_x + new_noise) for m in (heavy, light)]
    assert scores[0].mean() > scores[1].mean() + 0.05
    # The density that is scored integrates to one and has the deviation that is told.
    grid = np.linspace(-60, 60, 8001)
    density = np.exp(heavy.score_samples(np.zeros((8001, 1)), grid))
    mean, deviation = heavy.predict(np.zeros((1, 1)), return_std=True)
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1.0, abs=1e-3)
    variance = np.sum(density * (grid - mean) ** 2) * step
    assert np.sqrt(variance) == pytest.approx(deviation[0], rel=0.01)
    below = heavy.cdf(np.zeros((8001, 1)), grid)
    np.testing.assert_allclose(below, step * (np.cumsum(density) - density / 2), atol=2e-3)
    drawn = heavy.sample(np.zeros((8000, 1)))
    assert np.quantile(np.abs(drawn - mean), 0.5) == pytest.approx(
        0.741 * deviation[0] / np.sqrt(2.0), rel=0.05
    )


def test_huber_resists_outliers():
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 1))
    truth = 2.0 * x[:, 0]
    y = truth + 0.1 * random.normal(size=60)
    y[:4] += 100.0
    huber, square = (
        quick(utility=utility, n_experts=1).fit(x, y).predict(x)
        for utility in ("huber", "squared_error")
    )
    assert np.abs(huber - truth).mean() < 0.5 * np.abs(square - truth).mean()


@pytest.fixture(scope="module", params=["squared_error", "huber"])
def calibrated(request):
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 1))
    y = 2.0 * x[:, 0] + 0.5 * random.normal(size=60)
    return quick(utility=request.param).fit(x, y), x, y


def test_noise_is_the_root_mean_square_error_of_every_expert(calibrated):
    model, x, y = calibrated
    share = model.responsibilities(x)
    errors = np.column_stack([model.expert_predict(x, m) - y for m in range(2)])
    # An expert that hardly anybody asks is drawn towards the noise of all.
    busy = share.mean(axis=0) > 0.01
    assert busy.any()
    share, errors = share[:, busy], errors[:, busy]
    expected = np.sqrt((share * errors**2).sum(axis=0) / share.sum(axis=0))
    np.testing.assert_allclose(model.noise_[busy, 0], expected, rtol=1e-3)


def test_densities_of_error_utilities_are_calibrated(calibrated):
    model, _, _ = calibrated
    random = np.random.default_rng(1)
    x = random.normal(size=(2000, 1))
    y = 2.0 * x[:, 0] + 0.5 * random.normal(size=2000)
    truth = norm.logpdf(y, 2.0 * x[:, 0], 0.5).mean()
    assert model.score_samples(x, y).mean() == pytest.approx(truth, abs=0.1)
    _, std = model.predict(x, return_std=True)
    assert np.median(std) == pytest.approx(0.5, rel=0.2)
    residual = model.sample(x) - model.predict(x)
    assert residual.std() == pytest.approx(np.sqrt(np.mean(std**2)), rel=0.1)


def test_noise_follows_a_stream():
    model = quick(utility="squared_error", momentum_expert=0.9, batch_size="auto")
    random = np.random.default_rng(0)
    for _ in range(40):
        x = random.normal(size=(60, 1))
        model.partial_fit(x, 2.0 * x[:, 0] + 0.5 * random.normal(size=60))
    busiest = model.responsibilities(x).mean(axis=0).argmax()
    assert model.noise_[busiest, 0] == pytest.approx(0.5, rel=0.25)
    before = model.noise_.copy()
    model.partial_fit(x[:1], 2.0 * x[:1, 0])
    assert model.noise_ == pytest.approx(before, rel=0.1)


# ------------------------------------------------------------------------------- and the rest


def test_a_weight_is_a_number_of_repetitions_exactly():
    times = np.random.default_rng(0).integers(0, 3, size=60)
    models = (
        quick(utility="huber", max_iter=200).fit(X, Y, times),
        quick(utility="huber", max_iter=200).fit(np.repeat(X, times, axis=0), np.repeat(Y, times)),
        quick(utility="huber", max_iter=200).fit(X[times > 0], Y[times > 0], times[times > 0]),
    )
    first, *others = (model.predict(X, return_std=True) for model in models)
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("utility", ["likelihood", "huber"])
def test_files_and_pickles_predict_the_same(tmp_path, utility):
    model = quick(utility=utility).fit(X, Y)
    model.save(tmp_path / "committee.pin")
    copies = pinfactory.load(tmp_path / "committee.pin"), pickle.loads(pickle.dumps(model))
    for copy in copies:
        np.testing.assert_array_equal(
            copy.predict(X, return_std=True), model.predict(X, return_std=True)
        )
        np.testing.assert_array_equal(copy.score_samples(X, Y), model.score_samples(X, Y))


def test_pandas_frames_serve_every_question(committee):
    frame = pd.DataFrame(X, columns=["depth"])
    named = quick().fit(frame, pd.Series(Y))
    np.testing.assert_array_equal(named.predict(frame), committee.predict(X))
    np.testing.assert_array_equal(named.score_samples(frame, Y), committee.score_samples(X, Y))
    np.testing.assert_array_equal(named.sample(frame), committee.sample(X))


def test_budgets_are_met():
    told = quick(selector_bits=0.5, max_iter=1000).fit(X, Y).information_
    assert told.selector == pytest.approx(0.5, rel=0.05)


def test_warm_start_goes_on():
    warm = quick(warm_start=True, max_iter=400).fit(X, Y)
    before = warm.score_samples(X, Y).mean()
    assert warm.fit(X, Y).score_samples(X, Y).mean() > before


def test_the_number_of_outputs_stays(committee):
    with pytest.raises(ValueError, match="`y` must have 1 outputs, as in the first fit, but got 2"):
        committee.score_samples(X, Y2)
    with pytest.raises(ValueError, match="`y` must have 1 outputs"):
        pickle.loads(pickle.dumps(committee)).partial_fit(X, Y2)


def test_a_constant_target_is_learned():
    constant = quick(max_iter=400).fit(X, np.full(60, 7.0))
    np.testing.assert_allclose(constant.predict(X), 7.0, atol=0.2)


def test_answers_in_the_largest_units_are_finite():
    model = SpecialistRegressor(2, max_iter=1, n_init=1, random_state=0)
    X = np.linspace(-1.0, 1.0, 20)[:, None]
    model.fit(X, X[:, 0])
    # As a file can have it: means of a few units overflow.
    model.target_scaler_.scale_ = np.array([1e308])
    for answer in (*model.predict(1e6 * X, return_std=True), model.expert_predict(1e6 * X, 0)):
        assert np.isfinite(answer).all()
