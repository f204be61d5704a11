"""Experts that are distributions over Gaussians, and the selector's exact answer to them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from pinfactory.core.families import NormalWishart
from pinfactory.core.families._numerics import LOG_2PI, half_log_det


class Experts(eqx.Module):
    """What has been learned: q_m(μ, Λ) of every expert, and how often each is asked, log p(m).

    An expert that nobody asks has log p(m) = −∞.
    """

    posterior: NormalWishart
    log_weight: Float[Array, " m"]


class Prices(eqx.Module):
    """What information costs: the experts' common prior p₀(μ, Λ) and both resources."""

    prior: NormalWishart
    beta_selector: Float[Array | np.float32, ""]
    beta_expert: Float[Array | np.float32, ""]

    def expecting(self, prior: NormalWishart) -> "Prices":
        """Return them with another prior."""
        return Prices(prior, self.beta_selector, self.beta_expert)

    def hardened(self, beta_selector: float) -> "Prices":
        """Return them with another resource of the selector."""
        return Prices(self.prior, np.float32(beta_selector), self.beta_expert)


def whitened(posterior: NormalWishart, x: Float[Array, "d n"]) -> Float[Array, "m d n"]:
    """Return z = Rᵀ(x − ω) of every expert, RRᵀ = E[Λ], all in one matrix product.

    Samples are columns, so that everything that follows runs along them in memory.
    """
    m, d = posterior.mean.shape
    roots = jnp.swapaxes(mean_root(posterior), -1, -2)
    offset = jnp.einsum("mij,mj->mi", roots, posterior.mean)
    return (roots.reshape(m * d, d) @ x).reshape(m, d, -1) - offset[..., None]


def mean_root(posterior: NormalWishart) -> Float[Array, "*m d d"]:
    """Return the Cholesky factor of E[Λ] = νW."""
    return posterior.scale_cholesky * jnp.sqrt(posterior.df)[..., None, None]


def utility(posterior: NormalWishart, z: Float[Array, "m d n"]) -> Float[Array, "m n"]:
    """Return E_q[log N(x | μ, Λ⁻¹)] = ½(E[log|Λ|] − D log 2π − D/λ − ‖z‖²) (Section 3.2)."""
    d = posterior.dim
    constant = posterior.mean_log_det() - d * LOG_2PI - d / posterior.strength
    return 0.5 * (constant[:, None] - jnp.sum(z**2, axis=1))


@jax.jit
def sampled_utility(
    values: Float[Array, "s m d d+1"], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    """Estimate E_q[log N(x | μ, Λ⁻¹)] from samples [μ, Λ] of the experts, as the paper does."""
    root = jnp.linalg.cholesky(values[..., 1:])
    z = jnp.einsum("smji,smjn->smin", root, x - values[..., :1])
    log_det = 2.0 * half_log_det(root)[..., None]
    return 0.5 * jnp.mean(log_det - len(x) * LOG_2PI - jnp.sum(z**2, axis=2), axis=0)


def selector_logits(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], z: Float[Array, "m d n"]
) -> Float[Array, "m n"]:
    """Return log p(m) + β₁ E_q[log N(x)], the logits of the best selector (equation 3).

    An expert's price KL(q_m‖p₀)/β₂ is paid once, shared by the samples it is responsible for. The
    total does not depend on who those are, so it does not move the best selector: it acts through
    the experts, and on which of them survive.
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
