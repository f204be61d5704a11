"""What a Normal–Wishart predicts for the next sample."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .numerics import (
    LOG_2PI,
    half_log_det,
    solve_transposed,
    stirling_remainder,
    transposed_product,
)


class StudentT(eqx.Module):
    """A multivariate Student-t whose shape matrix is (LLᵀ)⁻¹, held by the Cholesky factor L.

    Its density is ∝ (1 + ‖Lᵀ(x − mean)‖² / df)^(−(df + D)/2).
    """

    mean: Float[Array, "*batch d"]
    precision_cholesky: Float[Array, "*batch d d"]
    df: Float[Array, "*batch"]

    def log_prob(self, value: Float[Array, "... d"]) -> Float[Array, "..."]:
        """Return the log-density."""
        half_d, half_df = 0.5 * self.mean.shape[-1], 0.5 * self.df
        z = transposed_product(self.precision_cholesky, value - self.mean)
        # log Γ((df + D)/2) − log Γ(df/2) − D/2 · log(df/2)
        log_gammas = (
            (half_df + half_d - 0.5) * jnp.log1p(half_d / half_df)
            - half_d
            + stirling_remainder(half_df + half_d)
            - stirling_remainder(half_df)
        )
        return (
            log_gammas
            - half_d * LOG_2PI
            + half_log_det(self.precision_cholesky)
            - (half_df + half_d) * jnp.log1p(jnp.sum(z**2, axis=-1) / self.df)
        )

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        """Draw samples: a Gaussian over the root of a scaled χ² variable."""
        normal_key, gamma_key = jax.random.split(key)
        dtype, half_df = self.mean.dtype, 0.5 * self.df
        noise = jax.random.normal(normal_key, shape + self.mean.shape, dtype)
        log_gamma = jax.random.loggamma(gamma_key, half_df, shape + half_df.shape, dtype)
        noise = noise * jnp.exp(0.5 * (jnp.log(half_df) - log_gamma))[..., None]
        return self.mean + solve_transposed(self.precision_cholesky, noise)
