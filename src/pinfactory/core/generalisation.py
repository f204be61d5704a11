"""How far what was learned may be from what is true (Section 2.2)."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from .constraints import LOG_2
from .information import Information


def pac_bayes_gap(
    divergence: Float[Array, "..."] | float, n_samples: int, confidence: float = 0.95
) -> Float[Array, "..."]:
    """Return √((KL(π_D ‖ π) + log n/δ) / (2(n − 1))), McAllester's bound of the generalisation gap.

    With probability 1 − δ over n independent samples the mean utility of parameters drawn from any
    π_D, of at most 1 and at least 0, is on new samples at most this much lower than on those seen.
    (The paper prints the difference with the other sign, for which the same bound holds.)

    Parameters
    ----------
    divergence
        KL(π_D ‖ π) in nats, from a prior π that was chosen without the samples.
    n_samples
        n, at least 2.
    confidence
        1 − δ.

    Examples
    --------
    >>> round(float(pac_bayes_gap(2.0, 1000)), 4)
    0.0772
    """
    if n_samples < 2 or not 0.0 < confidence < 1.0:
        raise ValueError(
            "`n_samples` must be at least 2 and `confidence` between 0 and 1, but got "
            f"{n_samples} and {confidence}."
        )
    excess = jnp.log(n_samples / (1.0 - confidence))
    return jnp.sqrt((jnp.asarray(divergence) + excess) / (2.0 * (n_samples - 1)))


def committee_gap(
    information: Information, n_samples: int, confidence: float = 0.95
) -> Float[Array, ""]:
    """Return the same with the information that selector and experts pay for each answer.

    KL in the space of answers in place of that of parameters, I(X;M) + I(X;Y|M): what Section 2.2
    suggests as a regulariser. It is no bound that anyone has proved, because posteriors p(m|x) and
    p(y|x,m) are themselves fitted to the samples; it says what the formula would promise.
    """
    nats = (information.selector + information.experts) * LOG_2
    return pac_bayes_gap(nats, n_samples, confidence)


def gaussian_divergence(
    parameters: PyTree, deviation: Float[Array, ""] | float, prior_deviation: float = 1.0
) -> Float[Array, ""]:
    """Return KL(N(θ, σ²I) ‖ N(0, τ²I)) in nats, summed over all weights θ of a model.

        ½ Σ_i [ (σ² + θᵢ²)/τ² − 1 − log σ²/τ² ]

    With it `pac_bayes_gap` bounds the gap of a model whose weights are drawn anew, with deviation
    σ, for every answer: of a committee, for instance, both of its selector and of its experts.

    Parameters
    ----------
    parameters
        A model; its floating-point arrays count.
    deviation
        σ.
    prior_deviation
        τ, chosen without the samples.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> round(float(gaussian_divergence({"weight": jnp.array([1.0, -2.0])}, 0.5)), 4)
    3.1363
    """
    ratio = (jnp.asarray(deviation) / prior_deviation) ** 2
    weights = jax.tree.leaves(eqx.filter(parameters, eqx.is_inexact_array))
    square = sum((jnp.sum(weight**2) for weight in weights), jnp.zeros(())) / prior_deviation**2
    n_weights = sum(weight.size for weight in weights)
    return 0.5 * (square + n_weights * (ratio - 1.0 - jnp.log(ratio)))
