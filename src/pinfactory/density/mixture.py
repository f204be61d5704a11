"""A fitted mixture in the user's units: densities, responsibilities, samples."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from pinfactory.core.batches import padded_length
from pinfactory.core.compiling import bounded
from pinfactory.core.families import NormalWishart
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.networks import reserve

from . import marginals
from .experts import (
    Experts,
    Hyperparameters,
    Statistics,
    log_density,
    selector_logits,
    standardised,
    utility,
)
from .marginals import Marginal
from .samples import Whitening

# Rows that are evaluated at once: bounds the memory for large tables.
BLOCK = 8192
# Samples whose median density is the usual one.
DRAWN = 1000


class Mixture(NamedTuple):
    """Experts, the statistics they were fitted to, hyperparameters, and the whitening of data."""

    whitening: Whitening
    hyper: Hyperparameters
    experts: Experts
    statistics: Statistics

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-density of every row, NaN integrated out."""
        return self._with_gaps(
            x,
            lambda rows: self._evaluate(_log_densities, rows) + self.whitening.log_det,
            lambda rows: logsumexp(self._marginal(rows, Marginal.log_density) + self._logs, axis=1),
        )

    def marginal_log_density(self, x: np.ndarray, features: list[int]) -> np.ndarray:
        """Return the log-density of some of the features, the others integrated out."""
        marginal = Marginal.of(self.experts.posterior, self.whitening, features)
        return logsumexp(marginal.log_density(x).T + self._logs, axis=1)

    def surprise(self, x: np.ndarray) -> np.ndarray:
        """Return log p(x') − log p(x) in bits, x' the median sample with the same values known."""
        drawn, _ = self.sample(DRAWN, np.random.RandomState(0))
        usual, missing = np.zeros(len(x)), np.isnan(x)
        for features, mine in marginals.by_pattern(missing):
            if features:
                usual[mine] = np.median(self.marginal_log_density(drawn[:, features], features))
        return (usual - self.log_density(x)) * BITS_PER_NAT

    def utilities(self, x: np.ndarray) -> np.ndarray:
        """Return E_q[log N(x|μ, Λ⁻¹)] for every row and expert, NaN integrated out."""
        return self._with_gaps(
            x,
            lambda rows: self._evaluate(_utilities, rows) + self.whitening.log_det,
            lambda rows: self._marginal(rows, Marginal.utilities),
        )

    def log_responsibilities(self, x: np.ndarray) -> np.ndarray:
        """Return log p(m|x) for every row and expert, but for a constant of the row."""
        beta = float(self.hyper.beta_selector)
        return self._with_gaps(
            x,
            lambda rows: self._evaluate(_logits, rows),
            lambda rows: beta * self._marginal(rows, Marginal.utilities) + self._logs,
        )

    def sample(self, n: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the density, and the expert that each comes from."""
        weights = self.weights
        labels = np.repeat(np.arange(len(weights)), random.multinomial(n, weights))
        predictive = self.experts.posterior.predictive()
        root = np.asarray(predictive.precision_cholesky, float)
        df = np.asarray(predictive.df, float)[labels]
        columns = np.asarray(predictive.mean, float)[labels]
        noise = random.standard_normal(columns.shape)
        noise *= np.sqrt(df / random.chisquare(df))[:, None]
        for m in np.unique(labels):
            chosen = labels == m
            columns[chosen] += solve_triangular(root[m], noise[chosen].T, lower=True, trans=1).T
        return self.whitening.location + columns @ self.whitening.inverse.T, labels

    @property
    def _logs(self) -> np.ndarray:
        with np.errstate(divide="ignore"):
            return np.log(self.weights)

    def _marginal(
        self, x: np.ndarray, question: Callable[[Marginal, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        return marginals.evaluate(self.experts.posterior, self.whitening, x, question)

    def _with_gaps(
        self,
        x: np.ndarray,
        whole: Callable[[np.ndarray], np.ndarray],
        partly: Callable[[np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Ask one question about complete rows, and another about those with missing values."""
        gap = np.isnan(x).any(axis=1)
        if not gap.any():
            return whole(x)
        some = partly(x[gap])
        answers = np.empty((len(x), *some.shape[1:]))
        answers[gap] = some
        if not gap.all():
            answers[~gap] = whole(x[~gap])
        return answers

    @property
    def weights(self) -> np.ndarray:
        """p(m)."""
        weights = np.exp(np.asarray(self.experts.log_weight, float))
        return weights / weights.sum()

    @property
    def means(self) -> np.ndarray:
        """E[μ] of every expert."""
        mean = np.asarray(self.experts.posterior.mean, float)
        return self.whitening.location + mean @ self.whitening.inverse.T

    @property
    def covariances(self) -> np.ndarray:
        """E[Λ]⁻¹ of every expert."""
        posterior = self.experts.posterior
        root = np.asarray(posterior.scale_cholesky, float)
        # With E[Λ] = νLLᵀ, its inverse is the square of (√ν L)⁻ᵀ, here in the user's units.
        back = self.whitening.inverse @ np.swapaxes(np.linalg.inv(root), -1, -2)
        return back @ np.swapaxes(back, -1, -2) / np.asarray(posterior.df, float)[:, None, None]

    @classmethod
    def zeros(cls, n_experts: int, d: int) -> "Mixture":
        """Return a mixture of the right shapes that has learned nothing."""
        # Posteriors, statistics, prior and whitening.
        reserve(2 * n_experts + 2, d * d + d + 2)

        def family(*batch: int) -> NormalWishart:
            shapes = {"mean": (d,), "scale_cholesky": (d, d), "df": (), "strength": ()}
            return NormalWishart(**{name: jnp.zeros(batch + s) for name, s in shapes.items()})

        return cls(
            Whitening(np.zeros(d), np.zeros(d), np.zeros((d, d))),
            Hyperparameters(family(), np.float32(0.0), np.float32(0.0)),
            Experts(family(n_experts), jnp.zeros(n_experts)),
            Statistics(
                jnp.zeros(n_experts), jnp.zeros((n_experts, d)), jnp.zeros((n_experts, d, d))
            ),
        )

    def check(self) -> None:
        """Raise a ValueError unless numbers are positive and matrices triangular where needed."""
        posterior, prior = self.experts.posterior, self.hyper.prior
        roots = [self.whitening.transform, prior.scale_cholesky, *posterior.scale_cholesky]
        positive = [
            *(np.diagonal(root) for root in roots),
            *(family.strength for family in (posterior, prior)),
            *(np.asarray(family.df) - (prior.dim - 1) for family in (posterior, prior)),
            self.whitening.scale,
            self.hyper.beta_selector,
            self.hyper.beta_expert,
        ]
        if not (
            all(np.all(np.asarray(part) > 0) for part in positive)
            and all(np.array_equal(root, np.tril(root)) for root in roots)
            and np.all(np.asarray(self.statistics.mass) >= 0)
            and abs(np.sum(np.exp(np.asarray(self.experts.log_weight, float))) - 1.0) < 1e-3
        ):
            raise ValueError("the arrays must be those of a mixture, but some are impossible")

    def _evaluate(self, question: Callable[..., Array], x: np.ndarray) -> np.ndarray:
        """Evaluate a function block by block."""
        answers = []
        for i in range(0, len(x), BLOCK):
            rows = x[i : i + BLOCK]
            length = min(padded_length(len(rows)), BLOCK)
            columns = jax.device_put(self.whitening.columns(rows, length))
            answer = question(self.experts, self.hyper.beta_selector, columns)
            answers.append(np.asarray(answer, float)[..., : len(rows)])
        return np.concatenate(answers, axis=-1).T


@bounded
@jax.jit
def _log_densities(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, " n"]:
    return log_density(experts, x)


@bounded
@jax.jit
def _utilities(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    return utility(experts.posterior, standardised(experts.posterior, x))


@bounded
@jax.jit
def _logits(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    return selector_logits(experts, beta_selector, standardised(experts.posterior, x))
