"""Factorisations of the matrices of many experts, one after the other.

XLA shares a batch of factorisations out to its threads, and the thread that asks for one waits for
them. If as many batches are asked for side by side as there are threads, all of them wait for ever.
"""

import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float


def cholesky(matrix: Float[Array, "*m d d"]) -> Float[Array, "*m d d"]:
    """Return the lower-triangular L of A = LLᵀ."""
    return jnp.vectorize(_cholesky, signature="(d,d)->(d,d)")(matrix)


def inverse(root: Float[Array, "*m d d"]) -> Float[Array, "*m d d"]:
    """Return L⁻¹ of a lower-triangular L."""
    return solve(root, jnp.eye(root.shape[-1]))


def solve(root: Float[Array, "*m d d"], right: Float[Array, "... d k"]) -> Float[Array, "*m d k"]:
    """Return L⁻¹B of a lower-triangular L."""
    return jnp.vectorize(_solve, signature="(d,d),(d,k)->(d,k)")(root, right)


@sequential_vmap
def _cholesky(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return jnp.linalg.cholesky(matrix)


@sequential_vmap
def _solve(root: Float[Array, "d d"], right: Float[Array, "d k"]) -> Float[Array, "d k"]:
    return solve_triangular(root, right, lower=True)
