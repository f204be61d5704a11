"""What fewer or more bits would buy: the experts of a committee under a selector of another β₁."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import rel_entr, softmax
from sklearn.base import is_classifier
from sklearn.metrics import mean_absolute_error, r2_score

from pinfactory.core.information import BITS_PER_NAT

from .committee import Committee, decide

# β₁ as multiples of what it is: from a selector that does not look to one that hardly doubts.
FACTORS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
# Probabilities of 0 are raised to this, so that one row cannot cost infinitely much.
LEAST = 1e-3


class TemperedPoint(NamedTuple):
    """A committee whose selector has another β₁.

    Attributes
    ----------
    factor
        Its β₁ as a multiple of the fitted one.
    bits
        I(X;M) on the rows.
    score
        R², or the share of right answers.
    error
        The mean absolute error, or the mean log-loss in nats.
    """

    factor: float
    bits: float
    score: float
    error: float


def tempered_curve(
    committee: Committee, X: Any, y: Any, factors: Sequence[float] = FACTORS
) -> list[TemperedPoint]:
    """Return how good the same experts are if the selector may look less, or more closely.

    The best selector for given experts is p(m|x) ∝ p(m) exp(β₁ f(x,m)): with τβ₁ in place of β₁ it
    is p(m|x) ∝ p(m) (p(m|x)/p(m))^τ. No training is needed; experts that were trained for another
    budget can only be better than these.

    Parameters
    ----------
    committee
        A fitted committee.
    X, y
        Rows to judge by, not those of `fit`.
    factors
        Values of τ.
    """
    decision = committee._ask(decide, X)
    share = np.exp(decision.selections[0].log_probs)
    prior = share.mean(axis=0)
    used = np.flatnonzero(prior > 0)
    share, prior = share[:, used] / share[:, used].sum(axis=1, keepdims=True), prior[used]
    log_share, log_prior = np.log(np.maximum(share, 1e-30)), np.log(prior)
    found = []
    for factor in factors:
        tempered = softmax(factor * log_share + (1.0 - factor) * log_prior, axis=1)
        bits = rel_entr(tempered, tempered.mean(axis=0)).sum(axis=1).mean() * BITS_PER_NAT
        found.append(
            TemperedPoint(factor, float(bits), *_judged(committee, decision, used, tempered, y))
        )
    return found


def _judged(
    committee: Committee,
    decision: Any,
    used: np.ndarray,
    share: Float[np.ndarray, "n m"],
    y: Any,
) -> tuple[float, float]:
    """Return score and error of the joint answer."""
    if is_classifier(committee):
        probs = np.einsum("nm,nmk->nk", share, np.exp(decision.answers.log_probs[:, used]))
        right = np.asarray(y) == committee.classes_[probs.argmax(axis=1)]
        known = np.asarray(y)[:, None] == committee.classes_
        told = np.maximum((probs * known).sum(axis=1), LEAST)
        return float(right.mean()), float(-np.log(told).mean())
    scaler = committee.target_scaler_
    answers = decision.answers.mean[:, used] * scaler.scale_ + scaler.mean_
    mean = np.einsum("nm,nmo->no", share, answers)
    truth = np.asarray(y, float).reshape(len(mean), -1)
    return float(r2_score(truth, mean)), float(mean_absolute_error(truth, mean))
