"""A fitted mixture in the user's units: densities, responsibilities, samples."""

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

from .experts import Experts, Hyperparameters, log_density, selector_logits, standardised, utility
from .statistics import Statistics
from .whitening import Whitening, bucket

# Rows that are evaluated at once: bounds the memory for large tables.
BLOCK = 8192


class Mixture(NamedTuple):
    """Experts, the statistics they were fitted to, hyperparameters, and the whitening of data."""

    whitening: Whitening
    hyper: Hyperparameters
    experts: Experts
    statistics: Statistics

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """Return the log-density of every row."""
        return self._evaluate(_log_densities, x) + self.whitening.log_det

    def marginal_log_density(self, x: np.ndarray, features: list[int]) -> np.ndarray:
        """Return the log-density of some of the features, the others integrated out."""
        predictive = self.experts.posterior.predictive()
        root = np.asarray(predictive.precision_cholesky, float)
        back = self.whitening.inverse @ np.swapaxes(np.linalg.inv(root), -1, -2)
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
        return self._evaluate(_utilities, x) + self.whitening.log_det

    def log_responsibilities(self, x: np.ndarray) -> np.ndarray:
        """Return log p(m|x) for every row and expert, but for a constant of the row."""
        return self._evaluate(_logits, x)

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

    def arrays(self) -> dict[str, dict[str, np.ndarray]]:
        """Return everything as named arrays, which `of` turns back."""
        return {
            "whitening": self.whitening._asdict(),
            "statistics": _named(self.statistics),
            "posterior": _named(self.experts.posterior) | {"log_weight": self.experts.log_weight},
            "prior": _named(self.hyper.prior)
            | {"betas": np.array([self.hyper.beta_selector, self.hyper.beta_expert])},
        }

    @classmethod
    def of(cls, arrays: dict[str, dict[str, np.ndarray]]) -> "Mixture":
        """Return the mixture of named arrays.

        Raises
        ------
        ValueError
            If these cannot be the arrays of a mixture.
        """
        posterior, prior, statistics = (
            {name: jnp.asarray(a) for name, a in arrays[kind].items()}
            for kind in ("posterior", "prior", "statistics")
        )
        _check(arrays)
        log_weight, betas = posterior.pop("log_weight"), prior.pop("betas")
        return cls(
            Whitening(**{name: np.asarray(a) for name, a in arrays["whitening"].items()}),
            Hyperparameters(NormalWishart(**prior), betas[0], betas[1]),
            Experts(NormalWishart(**posterior), log_weight),
            Statistics(**statistics),
        )

    @staticmethod
    def zeros(n_experts: int, d: int) -> dict[str, dict[str, np.ndarray]]:
        """Return `arrays` of the right shapes."""
        single, double = np.float32, np.float64

        def family(*batch: int) -> dict[str, np.ndarray]:
            shapes = {"mean": (d,), "scale_cholesky": (d, d), "df": (), "strength": ()}
            return {name: np.zeros((*batch, *shape), single) for name, shape in shapes.items()}

        return {
            "whitening": {
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

    def _evaluate(self, question: Callable[..., Array], x: np.ndarray) -> np.ndarray:
        """Evaluate a function block by block."""
        answers = []
        for i in range(0, len(x), BLOCK):
            rows = x[i : i + BLOCK]
            length = min(bucket(len(rows)), BLOCK)
            columns = jnp.asarray(self.whitening.columns(rows, length))
            answer = question(self.experts, self.hyper.beta_selector, columns)
            answers.append(np.asarray(answer, float)[..., : len(rows)])
        return np.concatenate(answers, axis=-1).T


def _check(arrays: dict[str, dict[str, np.ndarray]]) -> None:
    """Raise an error unless numbers are positive and matrices triangular where they have to be."""
    posterior, prior, whitening = (arrays[name] for name in ("posterior", "prior", "whitening"))
    d = len(prior["mean"])
    roots = [whitening["transform"], prior["scale_cholesky"], *posterior["scale_cholesky"]]
    positive = [
        *(np.diagonal(root) for root in roots),
        *(family["strength"] for family in (posterior, prior)),
        *(np.asarray(family["df"]) - (d - 1) for family in (posterior, prior)),
        whitening["scale"],
        prior["betas"],
    ]
    if not (
        all(np.all(np.asarray(part) > 0) for part in positive)
        and all(np.array_equal(root, np.tril(root)) for root in roots)
        and np.all(np.asarray(arrays["statistics"]["mass"]) >= 0)
        and abs(np.sum(np.exp(np.asarray(posterior["log_weight"], float))) - 1.0) < 1e-3
    ):
        raise ValueError("the arrays must be those of a mixture, but some have impossible values")


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
    return utility(experts.posterior, standardised(experts.posterior, x))


@jax.jit
def _logits(
    experts: Experts, beta_selector: Float[Array | np.float32, ""], x: Float[Array, "d n"]
) -> Float[Array, "m n"]:
    return selector_logits(experts, beta_selector, standardised(experts.posterior, x))
