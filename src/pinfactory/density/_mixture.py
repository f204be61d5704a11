"""A mixture in the user's units: what has been learned, and the questions it answers."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from scipy.stats import multivariate_t

from pinfactory.core.families import NormalWishart

from ._experts import Experts, Prices, log_density, selector_logits, utility, whitened
from ._frame import Frame, bucket
from ._statistics import Statistics

# Rows that are asked at once: bounds the memory of questions about large tables.
BLOCK = 8192


class Mixture(NamedTuple):
    """Experts, what they learned from at which prices, and the coordinates they live in."""

    frame: Frame
    prices: Prices
    experts: Experts
    statistics: Statistics

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-density of every row."""
        return self._ask(_log_densities, x) + self.frame.log_det

    def marginal_log_density(self, x: np.ndarray, features: list[int]) -> np.ndarray:
        """Return the log-density of some of the features, the others integrated out."""
        predictive = self.experts.posterior.predictive()
        root = np.asarray(predictive.precision_cholesky, float)
        back = self.frame.inverse @ np.swapaxes(np.linalg.inv(root), -1, -2)
        shape = (back @ np.swapaxes(back, -1, -2))[:, features][:, :, features]
        parts = [
            np.log(weight) + multivariate_t(mean, matrix, df).logpdf(x).reshape(len(x))
            for weight, mean, matrix, df in zip(
                self.weights, self.means[:, features], shape, np.asarray(predictive.df), strict=True
            )
            if weight > 0
        ]
        return logsumexp(parts, axis=0)

    def utilities(self, x: np.ndarray) -> np.ndarray:
        """Return E_q[log N(x|μ, Λ⁻¹)] for every row and expert."""
        return self._ask(_utilities, x) + self.frame.log_det

    def log_responsibilities(self, x: np.ndarray) -> np.ndarray:
        """Return log p(m|x) for every row and expert, but for a constant of the row."""
        return self._ask(_logits, x)

    def sample(self, n: int, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Draw rows from the density, and say which expert each comes from."""
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
        return self.frame.location + columns @ self.frame.inverse.T, labels

    @property
    def weights(self) -> np.ndarray:
        """p(m)."""
        weights = np.exp(np.asarray(self.experts.log_weight, float))
        return weights / weights.sum()

    @property
    def means(self) -> np.ndarray:
        """E[μ] of every expert."""
        mean = np.asarray(self.experts.posterior.mean, float)
        return self.frame.location + mean @ self.frame.inverse.T

    @property
    def covariances(self) -> np.ndarray:
        """E[Λ]⁻¹ of every expert."""
        posterior = self.experts.posterior
        root = np.asarray(posterior.scale_cholesky, float)
        # With E[Λ] = νLLᵀ, its inverse is the square of (√ν L)⁻ᵀ, here in the user's units.
        back = self.frame.inverse @ np.swapaxes(np.linalg.inv(root), -1, -2)
        return back @ np.swapaxes(back, -1, -2) / np.asarray(posterior.df, float)[:, None, None]

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Return everything as named arrays, which `of` turns back."""
        return {
            "frame": self.frame._asdict(),
            "statistics": _named(self.statistics),
            "posterior": _named(self.experts.posterior) | {"log_weight": self.experts.log_weight},
            "prior": _named(self.prices.prior)
            | {"betas": np.array([self.prices.beta_selector, self.prices.beta_expert])},
        }

    @classmethod
    def of(cls, arrays: dict[str, dict[str, np.ndarray]]) -> "Mixture":
        """Return the mixture of named arrays."""
        posterior, prior, statistics = (
            {name: jnp.asarray(a) for name, a in arrays[kind].items()}
            for kind in ("posterior", "prior", "statistics")
        )
        log_weight, betas = posterior.pop("log_weight"), prior.pop("betas")
        return cls(
            Frame(**{name: np.asarray(a) for name, a in arrays["frame"].items()}),
            Prices(NormalWishart(**prior), betas[0], betas[1]),
            Experts(NormalWishart(**posterior), log_weight),
            Statistics(**statistics),
        )

    @staticmethod
    def blank(n_experts: int, d: int) -> dict[str, dict[str, np.ndarray]]:
        """Return `arrays` of the right shapes."""
        single, double = np.float32, np.float64

        def family(*batch: int) -> dict[str, np.ndarray]:
            shapes = {"mean": (d,), "scale_cholesky": (d, d), "df": (), "strength": ()}
            return {name: np.zeros((*batch, *shape), single) for name, shape in shapes.items()}

        return {
            "frame": {
                "location": np.zeros(d, double),
                "scale": np.zeros(d, double),
                "transform": np.zeros((d, d), double),
            },
            "statistics": {
                "mass": np.zeros(n_experts, single),
                "mean": np.zeros((n_experts, d), single),
                "scatter": np.zeros((n_experts, d, d), single),
            },
            "posterior": family(n_experts) | {"log_weight": np.zeros(n_experts, single)},
            "prior": family() | {"betas": np.zeros(2, single)},
        }

    def _ask(self, question: Callable[..., Array], x: np.ndarray) -> np.ndarray:
        """Put a question, block by block."""
        answers = []
        for i in range(0, len(x), BLOCK):
            rows = x[i : i + BLOCK]
            length = min(bucket(len(rows)), BLOCK)
            columns = jnp.asarray(self.frame.columns(rows, length))
            answer = question(self.experts, self.prices.beta_selector, columns)
            answers.append(np.asarray(answer, float)[..., : len(rows)])
        return np.concatenate(answers, axis=-1).T


def _named(family: NormalWishart | Statistics) -> dict[str, np.ndarray]:
    return {name: np.asarray(a) for name, a in vars(family).items()}


@jax.jit
def _log_densities(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, " n"]:
    return log_density(experts, x)


@jax.jit
def _utilities(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    return utility(experts.posterior, whitened(experts.posterior, x))


@jax.jit
def _logits(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    return selector_logits(experts, beta_selector, whitened(experts.posterior, x))
