"""Factorisations of many matrices in one program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from pinfactory.density import experts


@pytest.fixture
def positive() -> np.ndarray:
    root = np.random.default_rng(0).normal(size=(2, 3, 4, 4))
    return root @ np.swapaxes(root, -1, -2) + 4.0 * np.eye(4)


def test_factors_and_solutions_are_those_of_scipy(positive):
    root = experts.cholesky(jnp.asarray(positive))
    expected = np.linalg.cholesky(positive)
    np.testing.assert_allclose(root, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(experts.inverse(root), np.linalg.inv(expected), rtol=1e-4, atol=1e-5)
    found = experts.solve(root, jnp.asarray(positive))
    solved = scipy.linalg.solve_triangular(expected[1, 2], positive[1, 2], lower=True)
    np.testing.assert_allclose(found[1, 2], solved, rtol=1e-4, atol=1e-5)


def test_no_batch_waits_for_threads(positive):
    """Batches of factorisations side by side can wait for ever, also those that a vmap makes."""

    def calls(function) -> list[str]:
        program = jax.jit(jax.vmap(function)).lower(jnp.asarray(positive)).as_text()
        lines = [line for line in program.splitlines() if "custom_call" in line]
        found = [line for line in lines if "potrf" in line or "trsm" in line]
        assert found
        return found

    for function in (experts.cholesky, experts.inverse):
        assert all("tensor<4x4xf32>" in call for call in calls(function))
        assert not any("x4x4xf32>" in call for call in calls(function))
