"""Answers that are the mean and precision of a Gaussian (Section 3.2, Appendix B)."""

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import digamma, gammaln, multigammaln
from jaxtyping import Array, Float, Key

from ._family import LOG_2PI, Family, align


class StudentT(eqx.Module):
    """A multivariate Student-t with lower Cholesky factor of its *precision-like* scale inverse.

    Its density is ∝ (1 + ‖Lᵀ(x − mean)‖² / df)^(−(df + D)/2).
    """

    mean: Float[Array, "*batch d"]
    precision_cholesky: Float[Array, "*batch d d"]
    df: Float[Array, "*batch"]

    def log_prob(self, value: Float[Array, "... d"]) -> Float[Array, "..."]:
        """Return the log-density."""
        d = self.mean.shape[-1]
        z = jnp.einsum("...ji,...j->...i", self.precision_cholesky, value - self.mean)
        return (
            gammaln(0.5 * (self.df + d))
            - gammaln(0.5 * self.df)
            - 0.5 * d * jnp.log(self.df * jnp.pi)
            + _half_log_det(self.precision_cholesky)
            - 0.5 * (self.df + d) * jnp.log1p(jnp.sum(z**2, axis=-1) / self.df)
        )

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d"]:
        """Draw samples: a Gaussian over the root of a scaled χ² variable."""
        normal_key, gamma_key = jax.random.split(key)
        noise = jax.random.normal(normal_key, shape + self.mean.shape, self.mean.dtype)
        chi2 = 2.0 * jax.random.gamma(gamma_key, 0.5 * self.df, shape + self.df.shape)
        noise = noise * jnp.sqrt(self.df / chi2)[..., None]
        return self.mean + _solve_transposed(self.precision_cholesky, noise)


class NormalWishart(Family):
    """A distribution over the mean μ and precision Λ of a Gaussian in D dimensions (Section 3.2).

    p(μ, Λ) = N(μ | ω, (λΛ)⁻¹) · W(Λ | W, ν), with W = L Lᵀ held by its Cholesky factor. A value is
    an array of D + 1 columns, [μ, Λ]: μ first, then the matrix.
    """

    mean: Float[Array, "*batch d"]
    scale_cholesky: Float[Array, "*batch d d"]
    df: Float[Array, "*batch"]
    strength: Float[Array, "*batch"]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.mean.shape[:-1]

    @property
    def dim(self) -> int:
        """Dimension D of the Gaussian whose parameters these are."""
        return self.mean.shape[-1]

    def mean_precision(self) -> Float[Array, "*batch d d"]:
        """Return E[Λ] = νW."""
        root = self.scale_cholesky
        return self.df[..., None, None] * (root @ jnp.swapaxes(root, -1, -2))

    def mean_log_det(self) -> Float[Array, "*batch"]:
        """Return E[log|Λ|] = ψ_D(ν/2) + D log 2 + log|W|."""
        return (
            multidigamma(0.5 * self.df, self.dim)
            + self.dim * jnp.log(2.0)
            + 2.0 * _half_log_det(self.scale_cholesky)
        )

    def log_prob(self, value: Float[Array, "... d d+1"]) -> Float[Array, "..."]:
        d = self.dim
        precision = value[..., 1:]
        root = jnp.linalg.cholesky(precision)
        shift = jnp.einsum("...ji,...j->...i", root, value[..., 0] - self.mean)
        normal = (
            _half_log_det(root)
            + 0.5 * d * (jnp.log(self.strength) - LOG_2PI)
            - 0.5 * self.strength * jnp.sum(shift**2, axis=-1)
        )
        # tr(W⁻¹Λ) = ‖L⁻¹ chol(Λ)‖²
        trace = jnp.sum(_solve(self.scale_cholesky, root) ** 2, axis=(-1, -2))
        wishart = (
            (self.df - d - 1.0) * _half_log_det(root)
            - 0.5 * trace
            - 0.5 * self.df * d * jnp.log(2.0)
            - self.df * _half_log_det(self.scale_cholesky)
            - multigammaln(0.5 * self.df, d)
        )
        return normal + wishart

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d d+1"]:
        """Draw Λ by Bartlett's decomposition, then μ given Λ."""
        mean_key, diagonal_key, lower_key = jax.random.split(key, 3)
        shape = shape + self.batch_shape
        d, dtype = self.dim, self.mean.dtype
        df = 0.5 * (self.df[..., None] - jnp.arange(d, dtype=dtype))
        diagonal = jnp.sqrt(2.0 * jax.random.gamma(diagonal_key, df, (*shape, d), dtype))
        lower = jnp.tril(jax.random.normal(lower_key, (*shape, d, d), dtype), -1)
        root = self.scale_cholesky @ (lower + diagonal[..., None] * jnp.eye(d, dtype=dtype))
        noise = jax.random.normal(mean_key, (*shape, d), dtype)
        mean = self.mean + _solve_transposed(root, noise) / jnp.sqrt(self.strength)[..., None]
        precision = root @ jnp.swapaxes(root, -1, -2)
        return jnp.concatenate([mean[..., None], precision], axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        d = self.dim
        wishart = (
            multigammaln(0.5 * self.df, d)
            + 0.5 * self.df * d * jnp.log(2.0)
            + self.df * _half_log_det(self.scale_cholesky)
            - 0.5 * (self.df - d - 1.0) * self.mean_log_det()
            + 0.5 * self.df * d
        )
        normal = 0.5 * d * (1.0 + LOG_2PI - jnp.log(self.strength)) - 0.5 * self.mean_log_det()
        return wishart + normal

    def kl(self, other: Self) -> Float[Array, "..."]:
        """Return KL(p ‖ q), complete with the constant C of Appendix B."""
        d = self.dim
        ratio = other.strength / self.strength
        shift = self._scaled(other.mean - self.mean)
        normal = 0.5 * other.strength * self.df * jnp.sum(shift**2, axis=-1) + 0.5 * d * (
            ratio - jnp.log(ratio) - 1.0
        )
        shape = jnp.broadcast_shapes(self.scale_cholesky.shape, other.scale_cholesky.shape)
        root = _solve(other.scale_cholesky, jnp.broadcast_to(self.scale_cholesky, shape))
        log_det = 2.0 * (_half_log_det(self.scale_cholesky) - _half_log_det(other.scale_cholesky))
        wishart = (
            -0.5 * other.df * log_det
            + 0.5 * self.df * (jnp.sum(root**2, axis=(-1, -2)) - d)
            + multigammaln(0.5 * other.df, d)
            - multigammaln(0.5 * self.df, d)
            + 0.5 * (self.df - other.df) * multidigamma(0.5 * self.df, d)
        )
        return normal + wishart

    def merge(self, weights: Float[Array, " n ..."]) -> Self:
        """Match E[Λ], E[Λμ], E[μᵀΛμ] and E[log|Λ|]."""
        d = self.dim
        w = align(weights, self.df.ndim)
        precision = jnp.sum(w[..., None, None] * self.mean_precision(), axis=0)
        root = jnp.linalg.cholesky(precision)
        # Deviations from one of the members, so that a common offset loses no digits.
        origin = self.mean[0]
        pull = jnp.einsum("n...ij,n...j->n...i", self.mean_precision(), self.mean - origin)
        pull = jnp.sum(w[..., None] * pull, axis=0)
        mean = origin + _solve_transposed(root, _solve(root, pull[..., None])[..., 0])
        spread = self.df * jnp.sum(self._scaled(self.mean - mean) ** 2, axis=-1)
        strength = d / jnp.sum(w * (d / self.strength + spread), axis=0)
        log_det_gap = 2.0 * _half_log_det(root) - jnp.sum(w * self.mean_log_det(), axis=0)
        df = _df_from_gap(log_det_gap, d)
        return type(self)(mean, root / jnp.sqrt(df)[..., None, None], df, strength)

    def predictive(self) -> StudentT:
        """Return p(x) = ∫ N(x | μ, Λ⁻¹) p(μ, Λ), a Student-t with ν − D + 1 degrees of freedom."""
        df = self.df - self.dim + 1.0
        factor = jnp.sqrt(df * self.strength / (1.0 + self.strength))
        return StudentT(self.mean, self.scale_cholesky * factor[..., None, None], df)

    def _scaled(self, vector: Float[Array, "... d"]) -> Float[Array, "*batch d"]:
        """Return Lᵀv, whose squared norm is vᵀWv."""
        return jnp.einsum("...ji,...j->...i", self.scale_cholesky, vector)


def multidigamma(a: Float[Array, "*batch"], d: int) -> Float[Array, "*batch"]:
    """Return ψ_D(a), the derivative of the log of the multivariate gamma function."""
    return jnp.sum(digamma(a[..., None] - 0.5 * jnp.arange(d)), axis=-1)


def _df_from_gap(gap: Float[Array, "*batch"], d: int) -> Float[Array, "*batch"]:
    """Solve log|E[Λ]| − E[log|Λ|] = D log(ν/2) − ψ_D(ν/2) for ν, by Newton in log(ν − D + 1).

    The right-hand side falls monotonically from ∞ at ν = D − 1 and behaves like D(D + 1)/(2ν).
    """

    def residual(u: Float[Array, ""], gap: Float[Array, ""]) -> Float[Array, ""]:
        df = jnp.exp(u) + d - 1.0
        # In log space the function is nearly a straight line, so Newton needs few steps.
        return jnp.log(d * jnp.log(0.5 * df) - multidigamma(0.5 * df, d)) - jnp.log(gap)

    def newton(u: Float[Array, ""], gap: Float[Array, ""]) -> Float[Array, ""]:
        value, slope = jax.value_and_grad(residual)(u, gap)
        return u - jnp.clip(value / slope, -2.0, 2.0)

    def solve(gap: Float[Array, ""]) -> Float[Array, ""]:
        start = jnp.log(0.5 * d * (d + 1.0) / gap)
        u = jax.lax.fori_loop(0, 30, lambda _, u: newton(u, gap), start)
        return jnp.exp(u) + d - 1.0

    gap = jnp.maximum(gap, 1e3 * jnp.finfo(gap.dtype).eps)
    return jnp.vectorize(solve)(gap)


def _half_log_det(root: Float[Array, "*batch d d"]) -> Float[Array, "*batch"]:
    """Return ½ log|LLᵀ| of a Cholesky factor L."""
    return jnp.sum(jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1)), axis=-1)


def _solve(root: Float[Array, "*#batch d d"], b: Float[Array, "*batch d k"]) -> Float[Array, "..."]:
    shape = jnp.broadcast_shapes(root.shape[:-2], b.shape[:-2])
    root, b = (jnp.broadcast_to(a, shape + a.shape[-2:]) for a in (root, b))
    return solve_triangular(root, b, lower=True)


def _solve_transposed(
    root: Float[Array, "... d d"], b: Float[Array, "... d"]
) -> Float[Array, "... d"]:
    """Return L⁻ᵀ b."""
    shape = jnp.broadcast_shapes(root.shape[:-2], b.shape[:-1])
    root = jnp.broadcast_to(root, shape + root.shape[-2:])
    b = jnp.broadcast_to(b, shape + b.shape[-1:])
    return solve_triangular(root, b[..., None], lower=True, trans=1)[..., 0]
