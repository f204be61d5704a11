"""Experts that are distributions over Gaussians, and the optimal selector for them."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from pinfactory.core.families import NormalWishart
from pinfactory.core.families.numerics import LOG_2PI

# The least utility of a sample, in nats.
LEAST_UTILITY = -1e30
# A larger β₁ makes no harder partition in single precision.
MAX_BETA_SELECTOR = 1e6


class Experts(eqx.Module):
    """q_m(μ, Λ) of every expert, and log p(m), which is −∞ for an expert that is not in use."""

    posterior: NormalWishart
    log_weight: Float[Array, " m"]


class Hyperparameters(eqx.Module):
    """The experts' common prior p₀(μ, Λ), and both resources β₁ and β₂."""

    prior: NormalWishart
    beta_selector: Float[Array | np.float32, ""]
    beta_expert: Float[Array | np.float32, ""]

    def with_prior(self, prior: NormalWishart) -> "Hyperparameters":
        """Return them with another prior."""
        return Hyperparameters(prior, self.beta_selector, self.beta_expert)

    def with_beta_selector(self, beta_selector: float) -> "Hyperparameters":
        """Return them with another resource of the selector."""
        return Hyperparameters(
            self.prior, np.float32(min(beta_selector, MAX_BETA_SELECTOR)), self.beta_expert
        )


def standardised(posterior: NormalWishart, x: Float[Array, "d n"]) -> Float[Array, "m d n"]:
    """Return z = Rᵀ(x − ω) of every expert, RRᵀ = E[Λ], all in one matrix product.

    Samples are columns, so that everything that follows runs along them in memory.
    """
    m, d = posterior.mean.shape
    roots = jnp.swapaxes(mean_precision_root(posterior), -1, -2)
    offset = jnp.einsum("mij,mj->mi", roots, posterior.mean)
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
    experts: Experts, beta_selector: Float[Array | np.float32, ""], z: Float[Array, "m d n"]
) -> Float[Array, "m n"]:
    """Return log p(m) + β₁ E_q[log N(x)], the logits of the best selector (equation 3).

    The term KL(q_m‖p₀)/β₂ of an expert does not depend on the responsibilities, so it is not part
    of the best selector: it acts through the experts, and on which of them are kept.
    """
    return experts.log_weight[:, None] + beta_selector * utility(experts.posterior, z)


def log_density(experts: Experts, x: Float[Array, "d n"]) -> Float[Array, " n"]:
    """Return log Σ_m p(m) ∫ N(x | μ, Λ⁻¹) q_m(μ, Λ): a mixture of Student-t, which is proper."""
    predictive = experts.posterior.predictive()
    d = experts.posterior.dim
    m = len(experts.log_weight)
    roots = jnp.swapaxes(predictive.precision_cholesky, -1, -2)
    offset = jnp.einsum("mij,mj->mi", roots, predictive.mean)
    z = (roots.reshape(m * d, d) @ x).reshape(m, d, -1) - offset[..., None]
    df = predictive.df[:, None]
    peak = predictive.log_prob(predictive.mean)[:, None]
    tails = 0.5 * (df + d) * jnp.log1p(jnp.sum(z**2, axis=1) / df)
    return logsumexp(experts.log_weight[:, None] + peak - tails, axis=0)
