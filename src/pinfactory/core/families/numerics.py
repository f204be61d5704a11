"""Formulas that keep their digits where the textbook ones cancel."""

from functools import partial

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

LOG_2PI = 1.8378770664093453


def excess(t: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return eᵗ − 1 − t, never negative: what a ratio of scales eᵗ costs in a KL divergence."""
    return jnp.expm1(t) - t


def stirling_remainder(x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return log Γ(x) − [(x − ½) log x − x + ½ log 2π], the small part of log Γ.

    Differences of log Γ at large arguments are differences of large numbers; with the bracket
    subtracted by hand only this remainder, which falls like 1/(12x), is left to round.
    """
    large = jnp.maximum(x, 10.0)
    square = large**-2
    series = 1 / 1260 - square * (1 / 1680 - square * (1 / 1188))
    series = (1 / 12 - square * (1 / 360 - square * series)) / large
    # Either branch gets arguments of its own range, so that neither spoils the other's gradient.
    small = jnp.minimum(x, 10.0)
    exact = gammaln(small) - ((small - 0.5) * jnp.log(small) - small + 0.5 * LOG_2PI)
    return jnp.where(x < 10.0, exact, series)


def half_log_det(root: Float[Array, "*batch d d"]) -> Float[Array, "*batch"]:
    """Return ½ log|LLᵀ| of a Cholesky factor L."""
    return jnp.sum(jnp.log(_diagonal(root)), axis=-1)


def stein_loss(root: Float[Array, "*batch d d"]) -> Float[Array, "*batch"]:
    """Return tr(LLᵀ) − log|LLᵀ| − D, which is zero for the identity and positive elsewhere."""
    on_diagonal = jnp.sum(excess(2.0 * jnp.log(_diagonal(root))), axis=-1)
    return on_diagonal + jnp.sum(jnp.tril(root, -1) ** 2, axis=(-1, -2))


def transposed_product(
    matrix: Float[Array, "... n d"], vector: Float[Array, "... n"]
) -> Float[Array, "... d"]:
    """Return Aᵀv, whose squared norm is vᵀAAᵀv; batch axes broadcast."""
    return jnp.einsum("...ji,...j->...i", matrix, vector)


def solve(
    root: Float[Array, "... d d"], matrix: Float[Array, "... d k"]
) -> Float[Array, "... d k"]:
    """Return L⁻¹B of a lower-triangular L; batch axes broadcast."""
    one = partial(solve_triangular, lower=True)
    return jnp.vectorize(one, signature="(d,d),(d,k)->(d,k)")(root, matrix)


def solve_transposed(
    root: Float[Array, "... d d"], vector: Float[Array, "... d"]
) -> Float[Array, "... d"]:
    """Return L⁻ᵀv of a lower-triangular L; batch axes broadcast."""
    one = partial(solve_triangular, lower=True, trans=1)
    return jnp.vectorize(one, signature="(d,d),(d)->(d)")(root, vector)


def _diagonal(matrix: Float[Array, "*batch d d"]) -> Float[Array, "*batch d"]:
    return jnp.diagonal(matrix, axis1=-2, axis2=-1)
