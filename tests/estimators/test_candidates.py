"""How many experts there are is found: one where one is enough, more where they pay."""

import copy
from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import adjusted_rand_score

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.core.hierarchy import stack
from pinfactory.core.learning import Data
from pinfactory.estimators.candidates import Candidate, _choose
from pinfactory.estimators.fitting import Judge, Replica, held_out_scores
from pinfactory.estimators.predictive import least_deviation
from pinfactory.estimators.table import Table, Validation


def line(n=200, seed=0):
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, x @ [1.0, -2.0] + 0.5 * random.normal(size=n)


def bend(n=200, seed=0):
    random = np.random.default_rng(seed)
    x = random.uniform(-1, 1, size=(n, 2))
    return x, np.abs(x[:, 0]) + 0.5 * x[:, 1] + 0.05 * random.normal(size=n)


@pytest.fixture(scope="module")
def divided():
    return SpecialistRegressor(4, random_state=0).fit(*bend())


def test_where_one_line_is_enough_one_remains_and_is_as_good():
    x, y = line()
    committee = SpecialistRegressor(4, random_state=0).fit(x, y)
    assert committee.effective_experts_ == pytest.approx(1.0)
    assert committee.verdict_.startswith("One expert is enough")
    assert len(committee.explain()) == 1
    x_new, y_new = line(2000, seed=1)
    expected = LinearRegression().fit(x, y).score(x_new, y_new)
    assert committee.score(x_new, y_new) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("n", [8, 30])
def test_of_a_tiny_table_one_line_is_learned_that_does_not_overfit(n):
    x, y = line(n, seed=2)
    committee = SpecialistRegressor(random_state=0).fit(x, y)
    assert committee.effective_experts_ == pytest.approx(1.0)
    x_new, y_new = line(2000, seed=1)
    expected = LinearRegression().fit(x, y).score(x_new, y_new)
    assert committee.score(x_new, y_new) > expected - 0.02
    # Eight rows are too few to judge by.
    assert committee.verdict_.startswith("One expert is " + ("in use." if n == 8 else "enough"))


def test_equal_rows_are_judged_as_rows_that_hardly_differ():
    random = np.random.default_rng(0)
    x = random.integers(0, 2, size=(2500, 5)).astype(float)
    y = random.random(2500) < 1 / (1 + np.exp(-1.5 * x[:, 0] + x[:, 1] - 2 * x[:, 2] * x[:, 3]))
    model = SpecialistClassifier(4, random_state=0, max_iter=400)
    found = [model.fit(z, y).gain_ for z in (x, x + 1e-9 * random.normal(size=x.shape))]
    (mean, error), (expected, other) = found
    assert mean == pytest.approx(expected, abs=0.5 * (error + other))
    assert error == pytest.approx(other, rel=0.3)
    assert expected > 0


def test_where_several_pay_they_are_used_and_the_gain_is_told(divided):
    assert divided.effective_experts_ > 1.5
    assert divided.score(*bend(1000, seed=1)) > 0.95
    mean, error = divided.gain_
    # One line leaves the deviation of |x| from its mean, √(1/12), of which 0.05 is noise.
    assert mean > 1.0 > error > 0
    assert f"{mean:.3f}" in divided.verdict_


@pytest.mark.filterwarnings("ignore:`beta_selector`=0.5 makes a division")
def test_experts_that_answer_whatever_comes_are_no_division():
    settings = {"start": "random", "early_stopping": False, "max_iter": 500, "random_state": 0}
    model = SpecialistRegressor(4, objective="free_energy", beta_selector=0.5, **settings)
    model.fit(*bend())
    assert model.effective_experts_ > 1.5
    assert "collapsed: the selector hardly looks at its inputs (0.0" in model.verdict_
    assert "raise beta_selector" in model.verdict_
    model.set_params(selector_bits=0.01)
    assert "raise selector_bits" in model.verdict_


@pytest.mark.parametrize(
    ("bits", "n_in_use", "gain", "beginning"),
    [
        (0.04, 1.03, None, "Training collapsed: one of 4 experts"),
        (0.04, 1.03, (0.1, 0.06), "Training collapsed: one of 4 experts"),
        # Few rows of an own law are a division where they gain beyond doubt.
        (0.04, 1.03, (0.1, 0.04), "1.0 of 4 experts are in use: on held-out samples"),
        (0.5, 1.4, None, "1.4 of 4 experts are in use."),
    ],
)
def test_the_verdict_knows_collapse_from_division(divided, bits, n_in_use, gain, beginning):
    model = copy.copy(divided)
    model.information_ = eqx.tree_at(
        lambda i: (i.selectors, i.effective_experts), divided.information_, ((bits,), n_in_use)
    )
    model.state_ = eqx.tree_at(lambda s: s.model.available, divided.state_, jnp.ones(4, bool))
    model.gain_ = gain
    assert model.verdict_.startswith(beginning)


@pytest.mark.parametrize("shift", [-0.5, 0.5])
def test_more_error_than_one_line_costs_beyond_doubt(divided, shift):
    loss = shift + np.random.default_rng(0).normal(size=50)
    weight = np.repeat([1.0, 3.0], 25)
    judge = Judge(
        utility=None,
        score=lambda model, data: jnp.ones(len(data.weight)),
        error=lambda model, data: data.y[:, 0],
    )
    # Errors stand where targets would; a row without weight does not count.
    rows = np.zeros((51, 2)), np.append(loss + 4.0, np.nan)[:, None], np.append(weight, 0.0)
    found = held_out_scores(
        judge,
        stack([divided.state_]),
        judged=Data(*(jnp.asarray(column, jnp.float32) for column in rows)),
        together=None,
        line=jnp.full(51, 4.0),
    )
    mean = np.average(loss, weights=weight)
    # The variance of a weighted mean of independent losses.
    error = np.sqrt(np.sum(weight**2 * (loss - mean) ** 2)) / weight.sum()
    excess = mean + error - 0.002
    assert (excess > 0) == (shift > 0)
    np.testing.assert_allclose(found, [1.0 - 100.0 * max(excess, 0.0)], rtol=1e-4)


@pytest.mark.parametrize(("gain", "kept"), [(0.5, 1), (0.05, 0)])
def test_a_division_pays_where_squared_error_alone_is_surely_smaller(divided, gain, kept):
    random = np.random.default_rng(0)
    x, noise = np.zeros((200, 2), np.float32), random.normal(size=(100, 2))
    # More in likelihood in the mean, but not beyond doubt; for each row and for its opposite.
    noise = np.concatenate([noise, -noise])
    gains = np.array([0.1, gain]) + noise
    rows = Table(x, gains.astype(np.float32), np.ones(200, np.float32))

    def of_division(column, otherwise):
        return lambda model, data: jnp.where(
            model.available.sum() > 1, column(data), otherwise * jnp.ones(len(data.weight))
        )

    judge = Judge(
        utility=None,
        score=of_division(lambda data: data.y[:, 0], 0.0),
        error=of_division(lambda data: 1.0 - data.y[:, 1], 1.0),
    )
    trainer = divided._trainer()
    trainer = replace(trainer, problem=trainer.problem._replace(judge=judge))
    validation = Validation.part(rows, np.arange(200), 0.9)
    one = eqx.tree_at(lambda s: s.model.available, divided.state_, jnp.arange(4) < 1)
    candidates = [Candidate(n, Replica(0, n, None, None), True) for n in (1, 4)]
    found, _ = _choose(
        trainer, candidates, validation, stack([one, divided.state_]), np.array([0.0, 0.1])
    )
    assert found == kept


def test_experts_come_in_the_order_of_their_share(divided):
    share = divided.information_.responsibility
    assert (np.diff(share) <= 1e-6).all()
    told = divided.explain()
    assert told["share"].min() >= 0.001
    np.testing.assert_allclose(told["share"], share[told["expert"]])


def test_another_seed_finds_the_same_division(divided):
    x, _ = bend()
    other = SpecialistRegressor(4, random_state=1).fit(*bend())
    busy = [model.responsibilities(x) for model in (divided, other)]
    partitions = [share.argmax(axis=1) for share in busy]
    assert adjusted_rand_score(*partitions) > 0.8


def test_what_begins_as_a_tree_is_the_same_with_every_seed():
    settings = {"n_experts": 4, "start": "tree", "max_iter": 200}
    one, other = (SpecialistRegressor(**settings, random_state=s).fit(*bend()) for s in (0, 1))
    assert one.n_iter_ > 0
    np.testing.assert_array_equal(one.predict(bend()[0]), other.predict(bend()[0]))


@pytest.mark.parametrize(
    ("selector", "expert"),
    [
        ("tree", "constant"),
        ("linear", "linear"),
        pytest.param("mlp", "linear", marks=pytest.mark.slow),
        pytest.param("linear", "constant", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_selector_and_expert_begins_as_a_tree(selector, expert):
    settings = {"selector": selector, "expert": expert, "start": "tree", "max_iter": 1}
    committee = SpecialistRegressor(4, early_stopping=True, random_state=0, **settings)
    assert committee.fit(*bend()).effective_experts_ > 1.5
    assert committee.score(*bend(1000, seed=1)) > (0.5 if expert == "constant" else 0.85)


def test_a_tree_needs_experts_with_a_linear_part():
    def factory(inputs, outputs, *, key):
        return eqx.nn.MLP(inputs, outputs, 4, 1, key=key)

    committee = SpecialistRegressor(2, expert=factory, start="tree")
    with pytest.raises(ValueError, match="`start` must be 'auto' or 'random'"):
        committee.fit(*bend())


FEW_STEPS = {"random_state": 0, "max_iter": 1000}


@pytest.fixture(scope="module")
def clean():
    return SpecialistRegressor(4, **FEW_STEPS).fit(*bend(400))


@pytest.mark.parametrize("deviations", [30.0, 50.0])
def test_rows_far_from_all_others_change_little(clean, deviations):
    x, y = bend(400)
    far = deviations * x.std() * np.random.default_rng(1).choice([-1.0, 1.0], size=(5, 2))
    planted = np.concatenate([x, far]), np.concatenate([y, np.full(5, y.mean())])
    disturbed = SpecialistRegressor(4, **FEW_STEPS).fit(*planted)
    x_new, y_new = bend(1000, seed=1)
    assert disturbed.score(x_new, y_new) == pytest.approx(clean.score(x_new, y_new), abs=0.002)


def test_no_expert_is_surer_than_repeated_targets_allow():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 2))
    y = np.round(x[:, 0] + random.normal(size=200))
    committee = SpecialistRegressor(4, random_state=0, max_iter=500).fit(x, y)
    _, deviation = committee.predict(x, return_std=True)
    assert deviation.min() >= 0.49


def test_the_least_deviation_is_half_a_step_of_rounded_targets_and_none_of_others():
    random = np.random.default_rng(0)
    exact = random.normal(size=500)
    assert least_deviation(exact, np.ones(500)) == 0.0
    assert least_deviation(np.round(4 * exact) / 4, np.ones(500)) == pytest.approx(0.125)


def test_classes_that_one_line_separates_need_one_expert():
    x, y = line(300)
    committee = SpecialistClassifier(4, random_state=0, max_iter=300).fit(x, y > 0)
    assert committee.effective_experts_ == pytest.approx(1.0)
