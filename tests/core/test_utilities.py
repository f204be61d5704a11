import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import huber as scipy_huber
from scipy.stats import norm, t

from pinfactory.core import utilities
from pinfactory.core.families import Categorical, Gaussian


def one(mean, scale):
    return Gaussian(jnp.asarray([mean]), jnp.log(jnp.asarray([scale])))


def test_log_likelihood_of_a_label_is_minus_its_cross_entropy():
    answer = Categorical.from_probs(jnp.asarray([0.2, 0.8]))
    assert utilities.log_likelihood(answer, jnp.asarray(1)) == pytest.approx(np.log(0.8))


@settings(deadline=None, max_examples=50)
@given(st.floats(-3, 3), st.floats(0.05, 3), st.floats(-3, 3))
def test_squared_error_is_bias_squared_plus_variance(mean, scale, target):
    value = utilities.squared_error(one(mean, scale), jnp.asarray([target]))
    assert float(value) == pytest.approx(-((mean - target) ** 2) - scale**2, rel=1e-4, abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(st.floats(-3, 3), st.floats(0.05, 3), st.floats(-3, 3))
def test_huber_is_the_loss_integrated_over_the_answer(mean, scale, target):
    def integrand(z):
        return scipy_huber(1.0, mean + scale * z - target) * norm.pdf(z)

    kinks = [(sign - mean + target) / scale for sign in (-1, 1)]
    inside = sorted(k for k in kinks if abs(k) < 10)
    expected = quad(integrand, -10, 10, points=inside or None, limit=200)[0]
    value = utilities.huber(one(mean, scale), jnp.asarray([target]))
    assert float(value) == pytest.approx(-expected, rel=1e-3, abs=1e-4)


def test_student_t_is_the_density_of_scipy():
    value = utilities.student_t(one(0.3, 0.7), jnp.asarray([-2.0]))
    np.testing.assert_allclose(value, t.logpdf(-2.0, 4.0, 0.3, 0.7), rtol=1e-5)


@pytest.mark.parametrize("name", ["squared_error", "huber"])
def test_utilities_of_several_outputs_add_up(name):
    utility = getattr(utilities, name)
    answer = Gaussian(jnp.asarray([0.5, -2.0]), jnp.asarray([0.1, -1.0]))
    target = jnp.asarray([0.0, 1.0])
    parts = [
        utility(Gaussian(answer.mean[i : i + 1], answer.log_scale[i : i + 1]), target[i : i + 1])
        for i in range(2)
    ]
    assert float(utility(answer, target)) == pytest.approx(float(sum(parts)), rel=1e-5)


@pytest.mark.parametrize("error", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("scale", [np.exp(-5.0), np.exp(5.0)])
def test_huber_has_a_finite_gradient_at_extremes(error, scale):
    slope = jax.grad(lambda mean: utilities.huber(one(mean, scale), jnp.zeros(1)))(error)
    assert jnp.isfinite(slope)
    assert -1.001 <= float(slope) <= 1e-3


@pytest.mark.parametrize("name", ["squared_error", "huber"])
def test_errors_need_gaussian_answers(name):
    with pytest.raises(TypeError, match="Gaussian answers, but got Categorical"):
        getattr(utilities, name)(Categorical.uniform((2,)), jnp.zeros(1))
