"""Exact marginals of experts: what is known of a sample whose other features are missing."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import digamma, gammaln

from pinfactory.core.families import NormalWishart

from .samples import Whitening


class Marginal(NamedTuple):
    """Normal–Wisharts over some of the features, in the user's units and double precision.

    If (μ, Λ) has ω, W, ν and λ, then the mean and precision of the features o, u of which are left
    out, have ω_o, ((W⁻¹)_oo)⁻¹, ν − |u| and λ: Λ⁻¹ is inverse Wishart, and so are its blocks.
    """

    mean: Float[np.ndarray, "m d"]  # ω of every expert
    root: Float[np.ndarray, "m d d"]  # the Cholesky factor of W⁻¹
    # ν and λ.
    df: Float[np.ndarray, " m"]
    strength: Float[np.ndarray, " m"]

    @classmethod
    def of(cls, posterior: NormalWishart, whitening: Whitening, features: list[int]) -> "Marginal":
        """Return the marginals of experts."""
        scale = np.asarray(posterior.scale_cholesky, float)
        back = whitening.inverse @ np.swapaxes(np.linalg.inv(scale), -1, -2)
        inverse = (back @ np.swapaxes(back, -1, -2))[:, features][:, :, features]
        mean = whitening.location + np.asarray(posterior.mean, float) @ whitening.inverse.T
        n_left_out = len(whitening.location) - len(features)
        return cls(
            mean[:, features],
            np.linalg.cholesky(inverse),
            np.asarray(posterior.df, float) - n_left_out,
            np.asarray(posterior.strength, float),
        )

    def squares(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Return (x − ω)ᵀ W (x − ω)."""
        away = np.swapaxes(x[None] - self.mean[:, None], -1, -2)
        return np.sum(np.linalg.solve(self.root, away) ** 2, axis=1)

    @property
    def half_log_det(self) -> Float[np.ndarray, " m"]:
        """Return ½ log|W⁻¹|."""
        return np.log(np.diagonal(self.root, axis1=-2, axis2=-1)).sum(axis=-1)

    def utilities(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Return E[log N(x | μ, Λ⁻¹)] = ½(E[log|Λ|] − D log 2π − D/λ − ν(x − ω)ᵀW(x − ω))."""
        d = x.shape[1]
        digammas = digamma(0.5 * (self.df[:, None] - np.arange(d))).sum(axis=1)
        log_det = digammas + d * np.log(2.0) - 2.0 * self.half_log_det
        constant = log_det - d * np.log(2.0 * np.pi) - d / self.strength
        return 0.5 * (constant[:, None] - self.df[:, None] * self.squares(x))

    def log_density(self, x: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
        """Return log ∫ N(x | μ, Λ⁻¹): a Student-t of ν − D + 1 degrees of freedom."""
        d = x.shape[1]
        df = self.df - d + 1.0
        # Its shape is W⁻¹ times this.
        widened = (1.0 + self.strength) / (self.strength * df)
        peak = gammaln(0.5 * (df + d)) - gammaln(0.5 * df) - 0.5 * d * np.log(np.pi * df)
        peak = peak - self.half_log_det - 0.5 * d * np.log(widened)
        ratio = self.squares(x) / (widened * df)[:, None]
        return peak[:, None] - 0.5 * (df + d)[:, None] * np.log1p(ratio)


def by_pattern(
    missing: Bool[np.ndarray, "n d"],
) -> Iterator[tuple[list[int], Bool[np.ndarray, " n"]]]:
    """Return the features that are known, and the rows of which just these are."""
    masks, place = np.unique(missing, axis=0, return_inverse=True)
    for k, mask in enumerate(masks):
        yield np.flatnonzero(~mask).tolist(), place.ravel() == k


def evaluate(
    posterior: NormalWishart,
    whitening: Whitening,
    x: Float[np.ndarray, "n d"],
    question: Callable[[Marginal, np.ndarray], np.ndarray],
) -> Float[np.ndarray, "n m"]:
    """Ask all experts about rows with missing values (NaN); one without any value is worth 0."""
    answers = np.zeros((len(x), len(posterior.mean)))
    for features, mine in by_pattern(np.isnan(x)):
        if features:
            known = x[np.ix_(mine, np.asarray(features))]
            answers[mine] = question(Marginal.of(posterior, whitening, features), known).T
    return answers
