"""Experts that are distributions over Gaussians: statistics, the best for them, their selector."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import sequential_vmap
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.compiling import bounded
from pinfactory.core.families import LOG_2PI, NormalWishart

# The share of a feature's variance that is added to it, so that singular data have a density.
RIDGE = 1e-6
# The least utility of a sample, in nats.
LEAST_UTILITY = -1e30
# A larger β₁ makes no harder partition in single precision.
MAX_BETA_SELECTOR = 1e6
# The least variance that experts expect, as a share of the data's: that of repeated samples.
LEAST_VARIANCE = 1e-10
# The least that an expert's variance counts for in the prior, as a share of all experts'.
LEAST_SHARE = 1e-4


class Gaps(NamedTuple):
    """The patterns of missing values that occur in each block, and which of them a sample has."""

    missing: Bool[Array | np.ndarray, "b p d"]
    pattern: Int[Array | np.ndarray, "b n"]


class Blocks(NamedTuple):
    """Samples as columns, in blocks of equal size; those that only pad have no weight.

    What is missing is zero; `gaps` is None if nothing is.
    """

    x: Float[Array | np.ndarray, "b d n"]
    weight: Float[Array | np.ndarray, "b n"]
    gaps: Gaps | None = None


class Statistics(NamedTuple):
    """Sufficient statistics of samples: their mass, mean and scatter about the mean."""

    mass: Float[Array | np.ndarray, "*m"]
    mean: Float[Array | np.ndarray, "*m d"]
    scatter: Float[Array | np.ndarray, "*m d d"]


class HostStatistics(NamedTuple):
    """The same in double precision, on the host."""

    mass: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray


_Any = TypeVar("_Any", Statistics, HostStatistics)


def to_device(exact: HostStatistics) -> Statistics:
    """Return them in single precision; compiled functions bring them to the device quickest."""
    return Statistics(*(leaf.astype(np.float32) for leaf in exact))


def to_host(statistics: Statistics) -> HostStatistics:
    """Return a copy in double precision."""
    return HostStatistics(*(np.array(leaf, float) for leaf in jax.tree.leaves(statistics)))


def replaced(
    statistics: HostStatistics, places: Int[np.ndarray, " k"], parts: HostStatistics
) -> HostStatistics:
    """Return the statistics with others in some places."""
    changed = HostStatistics(*(leaf.copy() for leaf in statistics))
    for leaf, part in zip(changed, parts, strict=True):
        leaf[places] = part
    return changed


def scale_up(statistics: _Any, factor: Float[Any, "*m"]) -> _Any:
    """Return the statistics of `factor` times as many samples."""
    scatter = factor[..., None, None] * statistics.scatter
    return type(statistics)(factor * statistics.mass, statistics.mean, scatter)


def join(a: _Any, b: _Any) -> _Any:
    """Return the statistics of the samples of both."""
    mass = a.mass + b.mass
    share = b.mass / (mass + (mass == 0))
    shift = b.mean - a.mean
    between = (a.mass * share)[..., None, None] * shift[..., :, None] * shift[..., None, :]
    return type(a)(mass, a.mean + share[..., None] * shift, a.scatter + b.scatter + between)


@bounded
@jax.jit
def blend(
    old: Statistics,
    new: Statistics,
    rate: Float[Array | np.float32, ""],
    total: Float[Array | np.float32, ""],
) -> Statistics:
    """Return statistics of `total` mass, of which the share `rate` is as in the new ones."""
    old_factor = (1.0 - rate) * total / jnp.sum(old.mass)
    return join(scale_up(old, old_factor), scale_up(new, rate * total / jnp.sum(new.mass)))


# ---------------------------------------------------------------------------------------- experts


class Experts(NamedTuple):
    """q_m(μ, Λ) of every expert, and log p(m), which is −∞ for an expert that is not in use."""

    posterior: NormalWishart
    log_weight: Float[Array | np.ndarray, " m"]


class Hyperparameters(NamedTuple):
    """The experts' common prior p₀(μ, Λ), and both resources β₁ and β₂."""

    prior: NormalWishart
    beta_selector: Float[Array | np.float32, ""]
    beta_expert: Float[Array | np.float32, ""]

    def with_prior(self, prior: NormalWishart) -> "Hyperparameters":
        """Return them with another prior."""
        return Hyperparameters(prior, self.beta_selector, self.beta_expert)


def standardised(posterior: NormalWishart, x: Float[Array, "d n"]) -> Float[Array, "m d n"]:
    """Return z = Rᵀ(x − ω) of every expert, RRᵀ = E[Λ], all in one matrix product.

    Samples are columns, so that everything that follows runs along them in memory.
    """
    return _standardised(mean_precision_root(posterior), posterior.mean, x)


def _standardised(
    root: Float[Array, "m d d"], mean: Float[Array | np.ndarray, "m d"], x: Float[Array, "d n"]
) -> Float[Array, "m d n"]:
    m, d = mean.shape
    roots = jnp.swapaxes(root, -1, -2)
    offset = jnp.einsum("mij,mj->mi", roots, mean)
    return (roots.reshape(m * d, d) @ x).reshape(m, d, -1) - offset[..., None]


def mean_precision_root(posterior: NormalWishart) -> Float[Array, "*m d d"]:
    """Return the Cholesky factor of E[Λ] = νW."""
    return posterior.scale_cholesky * jnp.sqrt(posterior.df)[..., None, None]


def utility(posterior: NormalWishart, z: Float[Array, "m d n"]) -> Float[Array, "m n"]:
    """Return E_q[log N(x | μ, Λ⁻¹)] = ½(E[log|Λ|] − D log 2π − D/λ − ‖z‖²) (Section 3.2).

    Bounded below, so that it is finite times any β₁.
    """
    d = posterior.dim
    constant = posterior.mean_log_det() - d * LOG_2PI - d / posterior.strength
    return jnp.maximum(0.5 * (constant[:, None] - jnp.sum(z**2, axis=1)), LEAST_UTILITY)


def selector_logits(
    experts: Experts,
    beta_selector: Float[Array | np.float32, ""],
    z: Float[Array, "m d n"],
    remainder: Float[Array, "m #n"] | float = 0.0,
) -> Float[Array, "m n"]:
    """Return log p(m) + β₁ E_q[log N(x)], the logits of the best selector (equation 3).

    The term KL(q_m‖p₀)/β₂ of an expert does not depend on the responsibilities, so it is not part
    of the best selector: it acts through the experts, and on which of them are kept. The remainder
    is what missing values add to the utility (`gaps.Completion`).
    """
    total = utility(experts.posterior, z) + remainder
    return total * beta_selector + experts.log_weight[:, None]


def log_density(experts: Experts, x: Float[Array, "d n"]) -> Float[Array, " n"]:
    """Return log Σ_m p(m) ∫ N(x | μ, Λ⁻¹) q_m(μ, Λ): a mixture of Student-t, which is proper."""
    predictive = experts.posterior.predictive()
    d, df = experts.posterior.dim, predictive.df[:, None]
    z = _standardised(predictive.precision_cholesky, predictive.mean, x)
    peak = predictive.log_prob(predictive.mean)[:, None]
    tails = 0.5 * (df + d) * jnp.log1p(jnp.sum(z**2, axis=1) / df)
    return logsumexp(experts.log_weight[:, None] + peak - tails, axis=0)


# ------------------------------ the best experts and prior for given statistics


def posterior_of(statistics: Statistics, hyper: Hyperparameters) -> NormalWishart:
    """Return argmax_q n E_q[log N] − KL(q‖p₀)/β₂, the conjugate posterior of β₂n samples.

    The paper keeps ν and λ fixed; here they follow the evidence, ν₀ + β₂n and λ₀ + β₂n, which is
    the maximum of the same free energy over them too. E[Λ] and E[μ] are the same either way.
    """
    prior = hyper.prior
    n = hyper.beta_expert * statistics.mass
    strength = prior.strength + n
    shift = statistics.mean - prior.mean
    mean = prior.mean + (n / strength)[:, None] * shift
    prior_inverse = inverse_scale(prior)
    inverse = (
        prior_inverse
        + hyper.beta_expert * statistics.scatter
        + (prior.strength * n / strength)[:, None, None] * shift[:, :, None] * shift[:, None, :]
    )
    return NormalWishart(mean, _inverse_root(inverse), prior.df + n, strength)


def inverse_scale(posterior: NormalWishart) -> Float[Array, "*m d d"]:
    """Return W⁻¹."""
    root = inverse(posterior.scale_cholesky)
    return jnp.swapaxes(root, -1, -2) @ root


def _inverse_root(matrix: Float[Array, "m d d"]) -> Float[Array, "m d d"]:
    """Return the lower Cholesky factor of A⁻¹.

    A is brought to unit diagonal and gets a little more of it, so that rounding never makes it
    indefinite.
    """
    d = matrix.shape[-1]
    size = jnp.sqrt(jnp.diagonal(matrix, axis1=-2, axis2=-1))
    scaled = matrix / (size[:, :, None] * size[:, None, :])
    scaled += 4.0 * d * jnp.finfo(matrix.dtype).eps * jnp.eye(d)
    # With A = UUᵀ, U upper triangular, A⁻¹ = U⁻ᵀU⁻¹ and U⁻ᵀ is lower triangular.
    upper = jnp.flip(cholesky(jnp.flip(scaled, (-2, -1))), (-2, -1))
    return inverse(jnp.swapaxes(upper, -1, -2)) / size[:, :, None]


def fit_prior(experts: Experts, prior: NormalWishart) -> NormalWishart:
    """Return the p₀ of least Σ_m KL(q_m‖p₀) over its scale: with E₀[Λ] the mean of E_m[Λ].

    As everywhere in the framework the best prior is the average of those it is a prior of. Other
    than in `NormalWishart.merge`, mean, ν₀ and λ₀ stay what the user set. Experts of repeated or
    singular samples are bounded: none counts as narrower, in any direction, than a hundredth of the
    mean deviation of the experts.
    """
    d, posterior = prior.dim, experts.posterior
    covariance = inverse_scale(posterior) / posterior.df[:, None, None]
    usual = jnp.einsum("m,mij->ij", jnp.exp(experts.log_weight), covariance)
    floor = 10.0 * RIDGE * jnp.trace(usual) / d + LEAST_VARIANCE
    root = _inverse_root(covariance + LEAST_SHARE * usual + floor * jnp.eye(d))
    active = experts.log_weight > -jnp.inf
    expected = jnp.einsum("m,mij,mkj->ik", active / jnp.sum(active), root, root)
    return NormalWishart(prior.mean, _root(expected / prior.df), prior.df, prior.strength)


def _root(matrix: Float[Array, "d d"]) -> Float[Array, "d d"]:
    """Return the Cholesky factor, with a little more on the diagonal against rounding."""
    size = jnp.sqrt(jnp.diagonal(matrix))
    scaled = matrix / (size[:, None] * size)
    scaled += 4.0 * len(matrix) * jnp.finfo(matrix.dtype).eps * jnp.eye(len(matrix))
    return cholesky(scaled) * size[:, None]


def fit_experts(statistics: Statistics, hyper: Hyperparameters) -> Experts:
    """Return the best experts and the best prior p(m) for the statistics."""
    share = statistics.mass / jnp.sum(statistics.mass)
    # Experts of less than a thousandth of a sample are not in use.
    active = statistics.mass > 1e-3 * jnp.minimum(1.0, jnp.sum(statistics.mass))
    log_weight = jnp.where(active, jnp.log(jnp.where(active, share, 1.0)), -jnp.inf)
    return Experts(posterior_of(statistics, hyper), log_weight - logsumexp(log_weight))


# XLA shares a batch of factorisations out to its threads, and the thread that asks for one waits
# for them: with as many batches side by side as threads, for ever. So they are done in turn.


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
