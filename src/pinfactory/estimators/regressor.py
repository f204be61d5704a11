"""`SpecialistRegressor`: a committee that predicts numbers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float
from scipy import special, stats
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core import utilities
from pinfactory.core.families import Gaussian
from pinfactory.core.gaussian_experts import (
    WIDEST,
    Calibrated,
    ConstantNoiseExpert,
    Widened,
    gaussian,
)
from pinfactory.core.hierarchy import Decision, Expert, FamilyExpert, Hierarchy
from pinfactory.core.learning import Data, State, Utility, expected_utilities
from pinfactory.persistence import register

from .committee import Committee, decide
from .fitting import Judge, Problem
from .linear_tree import grow
from .noise import least_deviation, measure_errors, root_mean_square
from .parameters import ATTRIBUTES, LIKELIHOODS, PARAMETERS
from .table import RowNumbers, Rows, Table
from .table_learner import unscaled

Routing = Literal["mixture", "best", "sampled"]

UTILITIES: dict[str, Utility] = {
    "likelihood": utilities.log_likelihood,
    "student_t": utilities.student_t,
    "squared_error": utilities.squared_error,
    "huber": utilities.huber,
}
# The deviation of Student's t of scale one.
T_DEVIATION = math.sqrt(utilities.DEGREES / (utilities.DEGREES - 2.0))


@register("SpecialistRegressor")
@describe(parameters=PARAMETERS, attributes=ATTRIBUTES)
@dataclass(kw_only=True, eq=False, repr=False)
class SpecialistRegressor(RegressorMixin, Committee):
    """Predict numbers with a few simple experts and a selector that sends each sample to one.

    Every expert answers with a Gaussian (or Student's t), so that the committee has a full
    predictive density. Inputs and targets are standardised inside, so that a β means the same
    whatever their units.

    Parameters
    ----------
    {parameters}
    utility : {"likelihood", "student_t", "squared_error", "huber"}, default="likelihood"
        What an answer is worth: the log-likelihood of the true value under a Gaussian, or under
        Student's t with 4 degrees of freedom and the answer's mean and scale, for targets with
        heavy tails; minus the squared error, or minus Huber's loss, which large errors dominate
        less. The latter two are expected over the answer's own noise, in standardised units.
        Information counts answers as Gaussians of their mean and scale.
    noise : {"constant", "varying"}, default="constant"
        Whether an expert is equally sure of all its answers, or its network gives a deviation
        for each input. The deviation of the committee varies in either case.

    Attributes
    ----------
    noise_ : ndarray of shape (n_experts, n_outputs)
        With a utility of ``"squared_error"`` or ``"huber"``, the root mean square error of every
        expert on the data it is responsible for; this is then the deviation of its answers.
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from pinfactory import SpecialistRegressor
    >>> x = np.linspace(-1, 1, 300)[:, None]
    >>> committee = SpecialistRegressor(n_experts=2, random_state=0).fit(x, np.abs(x[:, 0]))
    >>> bool(committee.score(x, np.abs(x[:, 0])) > 0.98)
    True
    """

    utility: str = "likelihood"
    noise: str = "constant"

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Any = None,
        checkpoint: str | Path | None = None,
    ) -> "SpecialistRegressor":
        """Train the committee.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            What to predict.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice.
        callbacks : Callback or sequence of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.
        checkpoint : str or Path, optional
            File that is written along the way; a `fit` that was interrupted goes on from it.

        Returns
        -------
        self
        """
        with self._learning():
            warm = self._is_warm()
            X, y, weight = self._checked(X, y, sample_weight, reset=not warm, numeric=True)
            y = self._columns(y, reset=not warm)
            self._noise_mass: np.ndarray | None = None
            rows = self._rows(X, y, weight)
            if not warm:
                self._fit_scalers(X, y, rows)
            table = self._table(X, self._targets(y), rows)
            self._fit_table(table, callbacks=callbacks, checkpoint=checkpoint)
            self._set_noise(table)
            if hasattr(self, "encoding_"):
                self._set_rules(X, y)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistRegressor":
        """Go on learning from a batch of samples, each seen once; arguments as in `fit`.

        The first batch sets the scale of inputs and targets. `information_` is that of the last
        batch.
        """
        with self._learning():
            first = not hasattr(self, "state_")
            X, y, weight = self._checked(X, y, sample_weight, reset=first, numeric=True)
            y = self._columns(y, reset=first)
            rows = Rows(np.arange(len(X)), weight)
            if first:
                self._noise_mass = None
                self._fit_scalers(X, y, rows)
            table = self._table(X, self._targets(y), rows)
            self._fit_batch(table)
            self._set_noise(table)
        return self

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

    # ------------------------------------------------------------- what makes it a regressor

    # A uniform prior is for a finite set of answers.
    prior = "running"
    _attributes = (
        *("target_scaler_", "_one_output", "_log_floor", "_noise_mass", "noise_"),
        *Committee._attributes,
    )
    _optional_attributes = (*Committee._optional_attributes, "noise_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _untrained(self) -> State[Hierarchy]:
        if self._noise_mass is not None and not hasattr(self, "noise_"):
            raise ValueError("what a regressor knows of its noise must come with `noise_`.")
        return super()._untrained()

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

    def _measured_targets(self, y: np.ndarray) -> np.ndarray:
        return self._columns(y, reset=False)

    def _problem(self) -> Problem:
        utility = check.choice("utility", self.utility, list(UTILITIES))
        varying = check.choice("noise", self.noise, ("constant", "varying")) == "varying"
        n_inputs, n_targets = self._n_inputs, len(self.target_scaler_.mean_)

        def expert(key: Array) -> Expert:
            if varying:
                return FamilyExpert(self._network(n_inputs, 2 * n_targets, key), gaussian)
            scale = jax.device_put(np.zeros(n_targets, np.float32))
            floor = jax.device_put(np.round(1e3 * self._log_floor).astype(np.int32))
            return ConstantNoiseExpert(self._network(n_inputs, n_targets, key), scale, floor)

        error = _error_of_rows if utility == "likelihood" else None
        return Problem(
            n_inputs,
            expert,
            Judge(UTILITIES[utility], ROW_SCORES[utility], error),
            _random_order,
            partial(grow, log_floor=self._log_floor, linear=self.expert != "constant"),
        )

    def _hierarchy(self) -> Hierarchy:
        hierarchy = self.state_.model
        if self.utility == "student_t":
            wider = Widened(hierarchy.last_experts, math.log(T_DEVIATION))
            return eqx.tree_at(lambda h: h.last_experts, hierarchy, wider)
        if self._noise_mass is None:
            return hierarchy
        log_noise = np.log(self.noise_ / self.target_scaler_.scale_).astype(np.float32)
        log_noise = log_noise.reshape(*hierarchy.sizes, -1)
        calibrated = Calibrated(hierarchy.last_experts, jnp.asarray(log_noise))
        return eqx.tree_at(lambda h: h.last_experts, hierarchy, calibrated)

    def _set_noise(self, table: Table) -> None:
        """Set each expert's noise to the root mean square error on what it is responsible for.

        A squared error rewards no honest deviation: that of an answer is set by β₂ alone. A
        likelihood does.
        """
        if self.utility in LIKELIHOODS:
            return
        scale = self.target_scaler_.scale_
        square, mass = measure_errors(self.state_.model, table, self._block)
        if self._noise_mass is not None:
            steps = -(-len(table.x) // self._trainer().batch_size(len(table.x)))
            kept = self.momentum_expert**steps * self._noise_mass
            square += kept[:, None] * (self.noise_ / scale) ** 2
            mass += kept
        self.noise_: np.ndarray = root_mean_square(square, mass) * scale
        self._noise_mass = mass

    @np.errstate(over="ignore")
    def _in_units(self, values: np.ndarray, origin: Any = None) -> np.ndarray:
        """Return standardised values in the units of the targets, as far as numbers go."""
        origin = self.target_scaler_.mean_ if origin is None else origin
        largest = np.finfo(np.float64).max
        own = np.asarray(values, np.float64) * self.target_scaler_.scale_ + origin
        return self._shaped(np.clip(own, -largest, largest))

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._one_output else values

    def _fit_scalers(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> None:
        self._fit_scaler(X, rows)
        own, weight = y[rows.position], rows.weight
        self.target_scaler_ = StandardScaler().fit(own, sample_weight=weight)
        if not self.standardise:
            self.target_scaler_ = unscaled(own.shape[1])
        least = np.asarray([least_deviation(column, weight) for column in own.T])
        self._log_floor = np.log(np.maximum(least / self.target_scaler_.scale_, np.exp(-WIDEST)))

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return ((y - self.target_scaler_.mean_) / self.target_scaler_.scale_).astype(np.float32)

    @staticmethod
    @eqx.filter_jit
    def _mixture(hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Gaussian:
        """Return the mean and deviation of the mixture of all experts."""
        decision = jax.vmap(hierarchy)(x).flat
        return jax.vmap(lambda answers, share: answers.merge(share))(
            decision.answers, decision.responsibilities
        )


def _random_order(table: Table, random: np.random.Generator) -> RowNumbers:
    return random.permutation(len(table.x))


def _log_likelihood_of_rows(
    utility: Utility, hierarchy: Hierarchy, data: Data
) -> Float[Array, " n"]:
    decision: Decision = jax.vmap(hierarchy)(data.x).flat
    log_y = expected_utilities(utility, decision.answers, data.y)
    return logsumexp(decision.log_responsibilities + log_y, axis=1)


def _error_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    answer = SpecialistRegressor._mixture(hierarchy, data.x)
    return jnp.sum((answer.mean - data.y) ** 2, axis=1)


def _squared_error_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return jax.vmap(utilities.squared_error)(
        SpecialistRegressor._mixture(hierarchy, data.x), data.y
    )


def _huber_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return jax.vmap(utilities.huber)(SpecialistRegressor._mixture(hierarchy, data.x), data.y)


ROW_SCORES: dict[str, Callable[[Hierarchy, Data], Float[Array, " n"]]] = {
    **{name: partial(_log_likelihood_of_rows, UTILITIES[name]) for name in LIKELIHOODS},
    "squared_error": _squared_error_of_rows,
    "huber": _huber_of_rows,
}
