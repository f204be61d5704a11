"""Members of every family, made from plain numbers, and a switch to double precision."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.families import Categorical, Family, Gaussian, NormalWishart

Maker = tuple[Callable[[np.ndarray], Family], int]


@pytest.fixture(scope="module")
def float64() -> Iterator[None]:
    """Compute in double precision for the tests of a module."""
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def categorical(numbers: np.ndarray) -> Categorical:
    log_probs = numbers - np.log(np.exp(numbers).sum(-1, keepdims=True))
    return Categorical(jnp.asarray(log_probs))


def gaussian(numbers: np.ndarray) -> Gaussian:
    mean, log_scale = np.split(numbers, 2, axis=-1)
    return Gaussian(jnp.asarray(mean), jnp.asarray(log_scale))


def normal_wishart(numbers: np.ndarray) -> NormalWishart:
    """Lay out ω, the diagonal and lower triangle of L, log(ν − D + 1) and log λ, for D = 2."""
    mean, diagonal, lower, log_df, log_strength = np.split(numbers, [2, 4, 5, 6], axis=-1)
    root = np.zeros((*numbers.shape[:-1], 2, 2))
    root[..., [0, 1], [0, 1]] = np.exp(diagonal)
    root[..., 1, 0] = lower[..., 0]
    leaves = mean, root, np.exp(log_df[..., 0]) + 1.0, np.exp(log_strength[..., 0])
    return NormalWishart(*(jnp.asarray(leaf) for leaf in leaves))


@pytest.fixture(
    params=[(categorical, 4), (gaussian, 4), (normal_wishart, 7)],
    ids=["Categorical", "Gaussian", "NormalWishart"],
    scope="module",
)
def maker(request: pytest.FixtureRequest) -> Maker:
    """How to make a member of a family, and from how many unconstrained numbers."""
    return request.param
