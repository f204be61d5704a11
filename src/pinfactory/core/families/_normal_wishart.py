"""Answers that are the mean and precision of a Gaussian, and what these predict (Section 3.2).

Formulas are written so that they keep their digits where the textbook ones cancel.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Key

from ._family import LOG_2PI, Family, Self, align, excess


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


class NormalWishart(Family):
    """A distribution over the mean μ and precision Λ of a Gaussian in D dimensions (Section 3.2).

    p(μ, Λ) = N(μ | ω, (λΛ)⁻¹) · W(Λ | W, ν), with W = L Lᵀ held by its Cholesky factor, λ > 0 and
    ν > D − 1. A value is an array of D + 1 columns, [μ, Λ]: μ first, then the matrix.

    Written with the expected precision νW instead of W, the large terms that grow like ν log ν
    cancel on paper. What is left of log Γ_D is `_log_normaliser`, and matrices enter through
    `stein_loss`, so that single precision serves for any ν.
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

    def mean_log_det(self) -> Float[Array, "*batch"]:
        """Return E[log|Λ|] = ψ_D(ν/2) + D log 2 + log|W|."""
        return 2.0 * half_log_det(self._mean_root()) - _log_det_gap(self.df, self.dim)

    def log_prob(self, value: Float[Array, "... d d+1"]) -> Float[Array, "..."]:
        d = self.dim
        root = jnp.linalg.cholesky(value[..., 1:])
        shift = transposed_product(root, value[..., 0] - self.mean)
        return (
            0.5 * d * (jnp.log(self.strength) - LOG_2PI)
            - 0.5 * self.strength * jnp.sum(shift**2, axis=-1)
            - d * half_log_det(root)
            - 0.5 * self.df * stein_loss(solve(self._mean_root(), root))
            - _log_normaliser(self.df, d)
        )

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Float[Array, "... d d+1"]:
        """Draw Λ by Bartlett's decomposition, then μ given Λ."""
        mean_key, diagonal_key, lower_key = jax.random.split(key, 3)
        shape = shape + self.batch_shape
        d, dtype = self.dim, self.mean.dtype
        half_df = 0.5 * (self.df[..., None] - jnp.arange(d, dtype=dtype))
        log_gamma = jax.random.loggamma(diagonal_key, half_df, (*shape, d), dtype)
        diagonal = jnp.sqrt(2.0) * jnp.exp(0.5 * log_gamma)
        lower = jnp.tril(jax.random.normal(lower_key, (*shape, d, d), dtype), -1)
        root = self.scale_cholesky @ (lower + diagonal[..., None] * jnp.eye(d, dtype=dtype))
        noise = jax.random.normal(mean_key, (*shape, d), dtype)
        mean = self.mean + solve_transposed(root, noise) / jnp.sqrt(self.strength)[..., None]
        precision = root @ jnp.swapaxes(root, -1, -2)
        return jnp.concatenate([mean[..., None], precision], axis=-1)

    def entropy(self) -> Float[Array, "*batch"]:
        d = self.dim
        return (
            _log_normaliser(self.df, d)
            + 0.5 * self.df * _log_det_gap(self.df, d)
            + 0.5 * d * (self.mean_log_det() + 1.0 + LOG_2PI - jnp.log(self.strength))
        )

    def kl(self, other: Self) -> Float[Array, "..."]:
        """Return KL(p ‖ q) in nats, complete with the constant C of Appendix B."""
        d = self.dim
        shift = transposed_product(self._mean_root(), other.mean - self.mean)
        normal = 0.5 * other.strength * jnp.sum(shift**2, axis=-1) + 0.5 * d * excess(
            jnp.log(other.strength / self.strength)
        )
        wishart = (
            0.5 * other.df * stein_loss(solve(other._mean_root(), self._mean_root()))
            + _log_normaliser(other.df, d)
            - _log_normaliser(self.df, d)
            + 0.5 * (other.df - self.df) * _log_det_gap(self.df, d)
        )
        return normal + wishart

    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        """Match E[Λ], E[Λμ], E[μᵀΛμ] and E[log|Λ|].

        The first three are a weighted least-squares problem, whose matrix has the rows of every
        √(wν) Lᵀ: its triangular factor is the root of E[Λ], its solution the mean and its residual
        the spread of the means. Solving it by QR never squares the condition of L.
        """
        d = self.dim
        w = align(weights, self.df.ndim)
        roots = self._mean_root()
        # Deviations from the mean's first estimate, so that a common offset loses no digits.
        centre = jnp.sum(w[..., None] * self.mean, axis=0)
        # A floor, because the slope of a root at zero is infinite.
        root_w = jnp.sqrt(jnp.maximum(w, jnp.finfo(w.dtype).tiny))[..., None]
        rows = root_w[..., None] * jnp.swapaxes(roots, -1, -2)
        targets = root_w * transposed_product(roots, self.mean - centre)
        rows = jnp.moveaxis(rows, 0, -3).reshape(*centre.shape[:-1], -1, d)
        targets = jnp.moveaxis(targets, 0, -2).reshape(*centre.shape[:-1], -1)

        q, r = jnp.linalg.qr(rows)
        sign = jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))
        root = jnp.swapaxes(r * sign[..., :, None], -1, -2)
        offset = solve_transposed(root, sign * transposed_product(q, targets))
        spread = jnp.sum((targets - jnp.einsum("...ij,...j->...i", rows, offset)) ** 2, axis=-1)

        strength = d / (jnp.sum(w * d / self.strength, axis=0) + spread)
        # Jensen: log|Σ wᵢPᵢ| ≥ Σ wᵢ log|Pᵢ|, so what is below zero is rounding.
        jensen = -2.0 * jnp.sum(w * half_log_det(solve(root, roots)), axis=0)
        gap = jnp.maximum(jensen, 0.0) + jnp.sum(w * _log_det_gap(self.df, d), axis=0)
        df = _df_from_log_det_gap(gap, d)
        return type(self)(centre + offset, root / jnp.sqrt(df)[..., None, None], df, strength)

    def predictive(self) -> StudentT:
        """Return p(x) = ∫ N(x | μ, Λ⁻¹) p(μ, Λ), a Student-t with ν − D + 1 degrees of freedom."""
        df = self.df - self.dim + 1.0
        factor = jnp.sqrt(df * self.strength / (1.0 + self.strength))
        return StudentT(self.mean, self.scale_cholesky * factor[..., None, None], df)

    def _mean_root(self) -> Float[Array, "*batch d d"]:
        """Return the Cholesky factor of E[Λ]."""
        return self.scale_cholesky * jnp.sqrt(self.df)[..., None, None]


def _log_normaliser(df: Float[Array, "*batch"], d: int) -> Float[Array, "*batch"]:
    """Return log Γ_D(ν/2) − D·ν/2·(log(ν/2) − 1), which grows only like log ν.

    It is what normalises a Wishart that is written with its mean in place of its scale. Each factor
    Γ((ν − j)/2) of Γ_D enters by Stirling's formula and its remainder.
    """
    j = jnp.arange(d, dtype=df.dtype)
    df = df[..., None]
    x = 0.5 * (df - j)
    terms = (
        0.5 * (df * jnp.log1p(-j / df) + j)
        - 0.5 * (j + 1.0) * jnp.log(x)
        + 0.5 * LOG_2PI
        + stirling_remainder(x)
    )
    return 0.25 * d * (d - 1) * jnp.log(jnp.pi) + jnp.sum(terms, axis=-1)


def _log_det_gap(df: Float[Array, "*batch"], d: int) -> Float[Array, "*batch"]:
    """Return log|E[Λ]| − E[log|Λ|] = D log(ν/2) − ψ_D(ν/2) of a Wishart.

    It is −2 times the slope of `_log_normaliser` and falls from ∞ at ν = D − 1 to 0 like
    D(D + 1)/(2ν).
    """
    return -2.0 * jax.jvp(lambda df: _log_normaliser(df, d), (df,), (jnp.ones_like(df),))[1]


def _df_from_log_det_gap(gap: Float[Array, "*batch"], d: int) -> Float[Array, "*batch"]:
    """Invert `_log_det_gap` by Newton's method in log(ν − D + 1).

    On logarithmic axes the function is nearly a straight line, so that eight steps
    reach the last digit for any ν and D up to 100.
    """

    def log_gap(u: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.log(_log_det_gap(jnp.exp(u) + d - 1.0, d))

    def newton(u: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        value, slope = jax.jvp(log_gap, (u,), (jnp.ones_like(u),))
        return u - jnp.clip((value - jnp.log(gap)) / slope, -2.0, 2.0)

    start = jnp.log(0.5 * d * (d + 1.0) / gap)
    return jnp.exp(jax.lax.fori_loop(0, 8, lambda _, u: newton(u), start)) + d - 1.0


# ----------------------------------------------------------------------------- numerics


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
