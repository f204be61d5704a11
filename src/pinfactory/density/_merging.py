"""Superfluous experts: two that are worth more as one."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp, xlogy
from jaxtyping import Array, Float
from scipy.special import multigammaln, xlogy as np_xlogy

from ._ascent import Statistics, inverse_scale
from ._experts import Experts, Prices, selector_logits, whitened


@jax.jit
def negative_entropies(
    experts: Experts,
    beta_selector: Float[Array, ""],
    x: Float[Array, "d n"],
    weight: Float[Array, " n"],
) -> Float[Array, "m m"]:
    """Return Σ_x r log r of the joint responsibility r of every pair of experts.

    The diagonal holds that of single experts.
    """
    logits = selector_logits(experts, beta_selector, whitened(experts.posterior, x))
    responsibility = jnp.exp(logits - logsumexp(logits, axis=0))
    m = len(logits)

    def one(i: Array) -> Float[Array, " m"]:
        other = jnp.where(jnp.arange(m)[:, None] == i, 0.0, responsibility)
        joint = other + responsibility[i]
        return jnp.sum(weight * xlogy(joint, joint), axis=1)

    return jax.lax.map(one, jnp.arange(m))


def merge(
    statistics: Statistics, entropies: np.ndarray, prices: Prices
) -> tuple[Statistics, int]:
    """Merge pairs of experts, best first, as long as the free energy rises; say how many.

    All of it follows from the statistics in closed form: the best free energy of an expert is the
    log-evidence of its samples, and a joint expert has the samples of both.
    """
    beta = float(prices.beta_selector)
    mass, mean, scatter = (np.asarray(a, float) for a in vars(statistics).values())
    asked = np.flatnonzero(mass > 0)
    a, b = (asked[i] for i in np.triu_indices(len(asked), 1))
    joint = _joint(mass, mean, scatter, a, b)
    value = _log_evidence(mass, mean, scatter, prices) + _selection(
        mass, mass.sum(), np.diagonal(entropies), beta
    )
    gain = (
        _log_evidence(*joint, prices)
        + _selection(joint[0], mass.sum(), entropies[a, b], beta)
        - value[a]
        - value[b]
    )
    free = np.ones(len(mass), bool)
    for pair in np.argsort(-gain):
        i, j = a[pair], b[pair]
        # Merging one pair changes what others of the same experts are worth.
        if gain[pair] <= 0.0:
            break
        if free[i] and free[j]:
            free[[i, j]] = False
            mass[i], mean[i], scatter[i] = (part[pair] for part in joint)
            mass[j], mean[j], scatter[j] = 0.0, 0.0, 0.0
    merged = Statistics(*(jnp.asarray(a, jnp.float32) for a in (mass, mean, scatter)))
    return merged, int((~free).sum()) // 2


def _joint(
    mass: np.ndarray, mean: np.ndarray, scatter: np.ndarray, a: np.ndarray, b: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    total = mass[a] + mass[b]
    share = (mass[b] / total)[:, None]
    shift = mean[b] - mean[a]
    between = (mass[a] * mass[b] / total)[:, None, None] * shift[:, :, None] * shift[:, None, :]
    return total, mean[a] + share * shift, scatter[a] + scatter[b] + between


def _selection(
    mass: np.ndarray, total: float, entropies: np.ndarray, beta: float
) -> np.ndarray:
    """Return −1/β₁ Σ_x r log r/p(m), what the selector pays for an expert."""
    return (np_xlogy(mass, mass / total) - entropies) / beta


def _log_evidence(
    mass: np.ndarray, mean: np.ndarray, scatter: np.ndarray, prices: Prices
) -> np.ndarray:
    """Return 1/β₂ log ∫ p₀ exp(β₂ Σ log N) but for a term that is linear in the mass."""
    beta, prior = float(prices.beta_expert), prices.prior
    d = prior.dim
    df, strength = float(prior.df), float(prior.strength)
    inverse = np.asarray(inverse_scale(prior), float)
    n = beta * mass
    shift = mean - np.asarray(prior.mean, float)
    between = (strength * n / (strength + n))[:, None, None] * shift[:, :, None] * shift[:, None, :]
    log_det = np.linalg.slogdet(inverse + beta * scatter + between)[1]
    return (
        multigammaln(0.5 * (df + n), d)
        - multigammaln(0.5 * df, d)
        + 0.5 * df * np.linalg.slogdet(inverse)[1]
        - 0.5 * (df + n) * log_det
        + 0.5 * d * np.log(strength / (strength + n))
    ) / beta
