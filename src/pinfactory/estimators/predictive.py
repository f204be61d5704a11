"""The density that a regressor predicts: what can be asked of it, its scores and its noise."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from scipy import special, stats
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pinfactory.core import utilities
from pinfactory.core.compiling import compiled_fully
from pinfactory.core.constraints import member_sums
from pinfactory.core.families import Gaussian
from pinfactory.core.gaussian_experts import WIDEST
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.learning import Data, Utility, expected_utilities

from .committee import Committee, decide
from .parameters import LIKELIHOODS

Routing = Literal["mixture", "best", "sampled"]

UTILITIES: dict[str, Utility] = {
    "likelihood": utilities.log_likelihood,
    "student_t": utilities.student_t,
    "squared_error": utilities.squared_error,
    "huber": utilities.huber,
}
# The deviation of Student's t of scale one.
T_DEVIATION = math.sqrt(utilities.DEGREES / (utilities.DEGREES - 2.0))
# From this share of rows with a value that others have too, targets count as rounded.
SHARED = 0.1
# The least deviation then, in deviations of the targets.
SUREST = 0.05

Squares = Float[np.ndarray, "m d"]
Masses = Float[np.ndarray, " m"]


@compiled_fully
def mixture_answer(hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Gaussian:
    """Return the mean and deviation of the mixture of all experts."""
    decision = jax.vmap(hierarchy)(x).flat
    return jax.vmap(lambda answers, share: answers.merge(share))(
        decision.answers, decision.responsibilities
    )


class PredictiveDensity(Committee):
    """Questions to a fitted committee whose answers are numbers."""

    utility: str
    target_scaler_: StandardScaler
    _one_output: bool
    _mixture = staticmethod(mixture_answer)

    def predict(
        self, X: Any, *, return_std: bool = False, routing: Routing = "mixture"
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Return the expected value.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        return_std : bool, default=False
            Whether to return the standard deviation of the predictive density as well.
        routing : {"mixture", "best", "sampled"}, default="mixture"
            Who answers: all experts weighted by their responsibility, the most responsible one
            alone, or one drawn by responsibility (the paper's generative process).

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs), or two of them
        """
        answer = self._routed(X, routing)
        mean = self._in_units(answer.mean)
        if not return_std:
            return mean
        return mean, self._in_units(np.exp(answer.log_scale), origin=0.0)

    def expert_predict(self, X: Any, expert: int) -> np.ndarray:
        """Return the expected value in the opinion of one expert."""
        return self._in_units(self._ask_expert(X, expert).mean)

    def score_samples(self, X: Any, y: Any = None) -> np.ndarray:
        """Return log p(y|x), the log-likelihood of every target under the whole committee.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), optional
            The targets. Without them it is the committee's own prediction that is scored, which
            tells how sure it is.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        check_is_fitted(self)
        y = self.predict(X) if y is None else y
        X, y, _ = self._checked(X, y, None, reset=False, numeric=True)
        y, scaler = self._columns(y, reset=False), self.target_scaler_
        decision = self._ask_numbers(decide, X)
        target = ((y - scaler.mean_) / scaler.scale_)[:, None, :]
        log_y = self._density(decision.answers).logpdf(target).sum(axis=2)
        log_share, log_unit = decision.selections[0].log_probs, np.sum(np.log(scaler.scale_))
        return special.logsumexp(log_share + log_y, axis=1) - log_unit

    def cdf(self, X: Any, y: Any) -> np.ndarray:
        """Return the probability that the answer is at most y; uniform where it is calibrated.

        Parameters
        ----------
        X, y
            As in `fit`.

        Returns
        -------
        ndarray of the shape of y
        """
        check_is_fitted(self)
        X, y, _ = self._checked(X, y, None, reset=False, numeric=True)
        decision = self._ask_numbers(decide, X)
        target = self._targets(self._columns(y, reset=False))
        share = np.exp(decision.selections[0].log_probs)
        below = self._density(decision.answers).cdf(target[:, None])
        return self._shaped(np.sum(share[..., None] * below, axis=1))

    def sample(self, X: Any) -> np.ndarray:
        """Draw an expert and then a value for each sample: the paper's generative process."""
        answer = self._routed(X, "sampled")
        random = check_random_state(self.random_state)
        noise = random.normal(size=answer.mean.shape)
        if self.utility == "student_t":
            noise = random.standard_t(utilities.DEGREES, answer.mean.shape) / T_DEVIATION
        value = answer.mean + noise * np.exp(answer.log_scale)
        return self._in_units(value)

    def _density(self, answers: Any) -> Any:
        """Return the densities of answers to standardised targets."""
        scale = np.exp(answers.log_scale)
        if self.utility == "student_t":
            return stats.t(utilities.DEGREES, answers.mean, scale / T_DEVIATION)
        return stats.norm(answers.mean, scale)

    # ------------------------------------------------------------------------ units of targets

    def _columns(self, y: np.ndarray, *, reset: bool) -> np.ndarray:
        """Return targets with one column for each output."""
        columns = y.reshape(len(y), -1).astype(float)
        if reset:
            self._one_output = y.ndim == 1
        elif columns.shape[1] != len(self.target_scaler_.mean_):
            raise ValueError(
                f"`y` must have {len(self.target_scaler_.mean_)} outputs, as in the first fit, "
                f"but got {columns.shape[1]}."
            )
        return columns

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return ((y - self.target_scaler_.mean_) / self.target_scaler_.scale_).astype(np.float32)

    @np.errstate(over="ignore")
    def _in_units(self, values: np.ndarray, origin: Any = None) -> np.ndarray:
        """Return standardised values in the units of the targets, as far as numbers go."""
        origin = self.target_scaler_.mean_ if origin is None else origin
        largest = np.finfo(np.float64).max
        own = np.asarray(values, np.float64) * self.target_scaler_.scale_ + origin
        return self._shaped(np.clip(own, -largest, largest))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._one_output else values


# ---------------------------------------------------------------------------- scores of rows


def _log_likelihood_of_rows(
    utility: Utility, hierarchy: Hierarchy, data: Data
) -> Float[Array, " n"]:
    decision: Decision = jax.vmap(hierarchy)(data.x).flat
    log_y = expected_utilities(utility, decision.answers, data.y)
    return logsumexp(decision.log_responsibilities + log_y, axis=1)


def error_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    """Return the squared error of the expected value."""
    answer = mixture_answer(hierarchy, data.x)
    return jnp.sum((answer.mean - data.y) ** 2, axis=1)


def _squared_error_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return jax.vmap(utilities.squared_error)(mixture_answer(hierarchy, data.x), data.y)


def _huber_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return jax.vmap(utilities.huber)(mixture_answer(hierarchy, data.x), data.y)


ROW_SCORES: dict[str, Callable[[Hierarchy, Data], Float[Array, " n"]]] = {
    **{name: partial(_log_likelihood_of_rows, UTILITIES[name]) for name in LIKELIHOODS},
    "squared_error": _squared_error_of_rows,
    "huber": _huber_of_rows,
}


# ------------------------------------------------------------------------------------ noise


def measure_errors(hierarchy: Hierarchy, blocks: Iterable[Data]) -> tuple[Squares, Masses]:
    """Return sums of each expert's squared errors and of the weight it is responsible for."""
    square, mass = np.zeros((1, 1)), np.zeros(1)
    for rows in blocks:
        more_square, more_mass = _errors(hierarchy, rows)
        square = square + np.asarray(more_square, float)
        mass = mass + np.asarray(more_mass, float)
    return square, mass


def root_mean_square(square: Squares, mass: Masses) -> Squares:
    """Return the deviation of each expert's errors, within what is believable."""
    # An expert that is responsible for no row has the noise of all of them.
    square = square + 1e-6 * square.sum(axis=0)
    variance = square / (mass + 1e-6 * mass.sum())[:, None]
    return np.clip(np.sqrt(variance), math.exp(-WIDEST), math.exp(WIDEST))


def least_deviation(y: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]) -> float:
    """Return the least deviation that answers to such targets may have.

    Where many rows share values, as rounded targets and counts do, it is half the distance between
    neighbouring values, and at least a twentieth of the targets' deviation. Zero where few do.
    """
    values, group = np.unique(y, return_inverse=True)
    mass = np.bincount(group, weights=weight)
    shared = mass[mass > 1.5 * weight.mean()].sum() / weight.sum()
    if len(values) < 2 or shared < SHARED:
        return 0.0
    mean = np.average(y, weights=weight)
    deviation = math.sqrt(np.average((y - mean) ** 2, weights=weight))
    # No wider than half the targets' deviation, as it would be where nearly all are the same.
    gap = min(float(np.median(np.diff(values))), deviation)
    return max(0.5 * gap, SUREST * deviation)


@compiled_fully
def _errors(hierarchy: Hierarchy, data: Data) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    decision = jax.vmap(hierarchy)(data.x).flat
    assert isinstance(decision.answers, Gaussian)
    share = data.weight[:, None] * decision.responsibilities
    square = (decision.answers.mean - data.y[:, None, :]) ** 2
    if decision.chosen is None:
        return jnp.einsum("nm,nmd->md", share, square), share.sum(axis=0)
    none = jnp.zeros(decision.selections[0].log_probs.shape[1])
    mass = member_sums(share, decision.chosen, none)
    squares = jnp.zeros((len(none), square.shape[2]))
    return member_sums(share[..., None] * square, decision.chosen, squares), mass
