"""Budgets in bits: met by every committee that can use them, and a warning from the others."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import log_softmax
from sklearn import datasets
from sklearn.exceptions import ConvergenceWarning

from pinfactory import SpecialistClassifier, SpecialistRegressor, networks
from pinfactory.core.gaussian_experts import ConstantNoiseExpert
from pinfactory.core.growth import temper_outputs
from pinfactory.core.hierarchy import Hierarchy, assemble
from pinfactory.core.learning import Data
from pinfactory.estimators import budgets

REGRESSIONS = ("diabetes", "linnerud")


def fit(name, **settings):
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    kind = SpecialistRegressor if name in REGRESSIONS else SpecialistClassifier
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        # Budgets hold however long a committee has learned.
        model = kind(**{"random_state": 0, "max_iter": 1000} | settings).fit(X, y)
    return model, [str(warning.message) for warning in caught]


def check(model, told, stage, bits):
    """Within 5 % of the budget, or below it with a warning that names what was reached."""
    reached = model.information_.selector if stage == "selector" else model.information_.experts
    assert reached <= 1.05 * bits + 1e-3
    if reached < 0.95 * bits - 1e-3:
        (message,) = told
        assert f"`{stage}_bits`={bits:g} is not met: the stage processes {reached:.3g}" in message
    else:
        assert not told
    return reached


@pytest.mark.parametrize("name", [pytest.param("iris", marks=pytest.mark.slow), "diabetes"])
def test_both_budgets_are_met_at_once(name):
    model, told = fit(name, n_experts=3, selector_bits=0.5, expert_bits=0.2)
    assert not told
    assert model.information_.selector == pytest.approx(0.5, rel=0.05)
    assert model.information_.experts == pytest.approx(0.2, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "digits", *REGRESSIONS])
def test_budgets_hold_on_every_bundled_table(name):
    for bits in (0.25, 1.0):
        model, told = fit(name, selector_bits=bits)
        assert check(model, told, "selector", bits) == pytest.approx(bits, rel=0.05, abs=1e-3)
    model, told = fit(name, expert_bits=0.1)
    assert check(model, told, "expert", 0.1) == pytest.approx(0.1, rel=0.05, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iris", "linnerud"])
def test_budgets_of_nothing_and_of_a_bit(name):
    for stage in ("selector", "expert"):
        model, told = fit(name, **{f"{stage}_bits": 0.0})
        check(model, told, stage, 0.0)
    model, told = fit(name, expert_bits=1.0)
    check(model, told, "expert", 1.0)


@pytest.mark.parametrize("bits", [0.1, 1.0])
def test_a_selector_at_a_low_price_leaves_the_experts_their_budget(bits):
    # One expert processes 1.5 bits here. A selector could, too, and leave the experts without use.
    model, told = fit("wine", expert_bits=bits)
    assert not told
    assert model.information_.experts == pytest.approx(bits, rel=0.05)
    assert model.score(*datasets.load_wine(return_X_y=True)) > 0.9


def test_a_budget_beyond_all_use_is_no_order():
    model, told = fit("iris", expert_bits=3.0)
    check(model, told, "expert", 3.0)
    assert told
    assert model.score(*datasets.load_iris(return_X_y=True)) > 0.9


def test_bits_that_nobody_can_use_are_told():
    model, told = fit("iris", expert="constant", expert_bits=0.5)
    assert check(model, told, "expert", 0.5) == pytest.approx(0.0, abs=1e-3)


def test_without_held_out_samples_budgets_are_met_too():
    model, told = fit("iris", selector_bits=0.5, early_stopping=False, max_iter=300)
    assert not told
    assert model.information_.selector == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("learn", "more"), [("fit", {}), ("partial_fit", {"classes": [0, 1, 2]})])
def test_a_price_at_which_no_division_can_pay_is_told(learn, more):
    x, y = datasets.load_iris(return_X_y=True)
    model = SpecialistClassifier(objective="free_energy", beta_selector=1.0, max_iter=1)
    with pytest.warns(UserWarning, match="`beta_selector`=1 makes a division of labour cost"):
        getattr(model, learn)(x, y, **more)


# ------------------------------------------------------------------------------ temperatures


def test_a_temperature_multiplies_the_log_ratio_to_the_prior():
    selector = networks.linear(2, 3, key=jax.random.key(0))
    share, x = np.asarray([0.5, 0.3, 0.2]), np.asarray([0.7, -1.2])
    before = log_softmax(np.asarray(selector(jnp.asarray(x))))
    expected = log_softmax(np.log(share) + 4.0 * (before - np.log(share)))
    hot = temper_outputs(selector, jnp.asarray(share), jnp.asarray(4.0))
    np.testing.assert_allclose(log_softmax(np.asarray(hot(jnp.asarray(x)))), expected, rtol=1e-4)


def test_gates_of_a_tree_without_temperature_give_the_prior():
    tree = networks.SoftTree.random(2, 4, key=jax.random.key(1))
    share = jnp.asarray([0.4, 0.3, 0.2, 0.1])
    cold = temper_outputs(tree, share, jnp.asarray(0.0))
    np.testing.assert_allclose(jnp.exp(cold(jnp.asarray([1.0, -1.0]))), share, rtol=1e-5)


def test_gaussian_answers_are_a_power_of_their_ratio_to_the_prior():
    def expert(key):
        return ConstantNoiseExpert(networks.linear(1, 1, key=key), jnp.asarray([-0.3]))

    model = assemble(jax.random.key(0), lambda key: networks.linear(1, 1, key=key), expert, 1)
    x = np.linspace(-1, 1, 5)[:, None]
    data = Data(jnp.asarray(x), jnp.zeros((5, 1)), jnp.ones(5))
    tempered = budgets._expert_path(model, data)(jnp.log(0.3))

    def answer(model: Hierarchy):
        found = jax.vmap(model)(data.x).answers
        return np.asarray(found.mean[:, 0, 0]), np.exp(np.asarray(found.log_scale[0, 0, 0]))

    mean, scale = answer(model)
    prior = stats.norm(mean.mean(), np.sqrt(scale**2 + mean.var()))
    y = np.linspace(-3, 3, 7)
    new_mean, new_scale = answer(tempered)
    for old, new in zip(mean, new_mean, strict=True):
        log_ratio = 0.3 * stats.norm.logpdf(y, old, scale) + 0.7 * prior.logpdf(y)
        difference = log_ratio - stats.norm.logpdf(y, new, new_scale)
        np.testing.assert_allclose(difference, difference[0], atol=0.02)


def test_a_selector_that_does_not_end_linearly_is_left_to_training():
    class Own(eqx.Module):
        layer: eqx.nn.Linear

        def __call__(self, x, *, key=None):
            return jnp.tanh(self.layer(x))

    def factory(inputs, outputs, *, key):
        return Own(networks.linear(inputs, outputs, key=key))

    settings = {"early_stopping": False, "max_iter": 1, "random_state": 0}
    model = SpecialistClassifier(selector=factory, selector_bits=0.0, **settings)
    with pytest.warns(ConvergenceWarning, match="`selector_bits`=0 is not met: .* raise max_iter"):
        model.fit(*datasets.load_iris(return_X_y=True))
