"""Utilities of an answer: how good it is in view of the truth, expected over the answer's noise."""

import math

import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from .families import Family, Gaussian


def log_likelihood(answer: Family, target: Array) -> Float[Array, ""]:
    """Return log p(target); for a Categorical this is the negative cross-entropy of Section 3.1."""
    return answer.log_prob(target)


# Degrees of freedom of Student-t answers: tails heavy enough for gross errors, and a finite
# variance (as in Lange, Little & Taylor 1989).
DEGREES = 4.0
_LOG_PEAK = (
    math.lgamma(0.5 * (DEGREES + 1.0))
    - math.lgamma(0.5 * DEGREES)
    - 0.5 * math.log(DEGREES * math.pi)
)


def student_t(answer: Family, target: Float[Array, " d"]) -> Float[Array, ""]:
    """Return the log-likelihood of Student's t with `DEGREES` around the answer, scaled as it is.

    A target far from the answer costs the logarithm of its distance instead of the square.
    """
    answer = _gaussian(answer)
    z = (target - answer.mean) / answer.scale
    spread = 0.5 * (DEGREES + 1.0) * jnp.log1p(z**2 / DEGREES)
    return jnp.sum(_LOG_PEAK - spread - answer.log_scale, axis=-1)


def squared_error(answer: Family, target: Float[Array, " d"]) -> Float[Array, ""]:
    """Return −E‖ŷ − y‖² for ŷ drawn from the answer (Section 3.1)."""
    answer = _gaussian(answer)
    return -jnp.sum((answer.mean - target) ** 2 + answer.scale**2, axis=-1)


def huber(answer: Family, target: Float[Array, " d"]) -> Float[Array, ""]:
    """Return −E[h(ŷ − y)] with Huber's loss h, quadratic up to 1 and linear beyond (Appendix A).

    h(z) = z²/2 for |z| < 1, else |z| − 1/2, integrated over z ~ N(μ − y, σ²) by the moments of the
    truncated normal.
    """
    answer = _gaussian(answer)
    error, scale = answer.mean - target, answer.scale
    low, high = (-1.0 - error) / scale, (1.0 - error) / scale
    below, above = norm.cdf(low), norm.sf(high)
    inside = 1.0 - below - above
    at_low, at_high = norm.pdf(low), norm.pdf(high)
    square = (
        (error**2 + scale**2) * inside
        + 2.0 * error * scale * (at_low - at_high)
        + scale**2 * (low * at_low - high * at_high)
    )
    absolute = error * (above - below) + scale * (at_high + at_low)
    return -jnp.sum(0.5 * square + absolute - 0.5 * (below + above), axis=-1)


def _gaussian(answer: Family) -> Gaussian:
    if not isinstance(answer, Gaussian):
        raise TypeError(f"This utility is for Gaussian answers, but got {type(answer).__name__}.")
    return answer
