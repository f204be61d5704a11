"""`SpecialistRegressor`: a committee that predicts numbers."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Tags

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core.gaussian_experts import (
    WIDEST,
    Calibrated,
    ConstantNoiseExpert,
    Extended,
    Widened,
    gaussian,
)
from pinfactory.core.hierarchy import Expert, FamilyExpert, Hierarchy
from pinfactory.core.learning import State
from pinfactory.persistence import register
from pinfactory.tables import FAR

from .beyond import Beyond
from .committee import Committee
from .drawn import Counts
from .fitting import Judge, Problem
from .large import answered
from .parameters import ATTRIBUTES, LIKELIHOODS, PARAMETERS
from .predictive import (
    ROW_SCORES,
    T_DEVIATION,
    UTILITIES,
    PredictiveDensity,
    error_of_rows,
    least_deviation,
    measure_errors,
    root_mean_square,
)
from .splits import grow
from .stream import Samples, fits
from .table import MOST_RANGED, Distances, Reach, RowNumbers, Rows, Table, is_array
from .table_learner import ReadBlocks, unscaled


@register("SpecialistRegressor")
@describe(parameters=PARAMETERS, attributes=ATTRIBUTES)
@dataclass(kw_only=True, eq=False, repr=False)
class SpecialistRegressor(RegressorMixin, PredictiveDensity):
    """Predict numbers with a few simple experts and a selector that sends each sample to one.

    Every expert answers with a Gaussian (or Student's t), so the committee predicts a full
    density. Inputs and targets are standardised internally, so a β has the same
    meaning in any units.

    Parameters
    ----------
    {parameters}
    utility : {"likelihood", "student_t", "squared_error", "huber"}, default="likelihood"
        The utility of an answer: the log-likelihood of the true value under a Gaussian, or under
        Student's t with 4 degrees of freedom and the answer's mean and scale, for targets with
        heavy tails; minus the squared error, or minus Huber's loss, which large errors dominate
        less. The latter two are expected over the answer's own noise, in standardised units.
        Information counts answers as Gaussians of their mean and scale.
    noise : {"constant", "varying"}, default="constant"
        Whether an expert has one standard deviation for all its answers, or its network predicts
        one for each input. The standard deviation of the committee varies in both cases.

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
            The samples, an array or a data frame. Those that need not fit into memory may be a
            `numpy.memmap`, the path of Parquet files, an Arrow data set, a Dask array or data
            frame, or `pinfactory.estimators.chunked.LocalChunks`.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs), or str or list of str
            What to predict; names of columns for files and data sets.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice.
        callbacks : Callback or sequence of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.
        checkpoint : str or Path, optional
            File for the state of training; an interrupted `fit` continues from it.

        Returns
        -------
        self
        """
        self._fit(X, y, sample_weight, callbacks=callbacks, checkpoint=checkpoint)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistRegressor":
        """Continue training with a batch of samples, in any order; arguments as in `fit`.

        A random sample of up to 4,096 earlier rows is kept in memory, and as many of them as there
        are new rows are used again. The first batch sets the scale of inputs and targets; if it
        does not fit later batches, training restarts from the sample. `information_` is that
        of the samples of the last call.
        """
        with self._learning():
            first = not hasattr(self, "state_")
            X, y, weight = self._checked(X, y, sample_weight, reset=first, numeric=True)
            # Nothing is left out on line.
            self._beyond: tuple[np.ndarray, ...] | None = None
            self._fit_batch(Samples(X, self._columns(y, reset=first), weight))
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R²; samples and targets may be read in chunks, as in `fit`."""
        if is_array(X) or (parts := answered(self, X, y, sample_weight)) is None:
            return super().score(X, y, sample_weight)
        sums: Any = 0.0
        for part in parts:
            # Near their mean, where sums of squares have no error of rounding.
            truth = part.y.reshape(len(part), -1) - self.target_scaler_.mean_
            error = (part.y - part.X).reshape(len(part), -1)
            ones = np.ones_like(error)
            sums += np.asarray([error**2, truth**2, truth, ones]).sum(axis=1)
        error, square, total, n = sums
        return float(np.mean(1.0 - error / (square - total**2 / n)))

    # ------------------------------------------------------------- what makes it a regressor

    # A uniform prior is for a finite set of answers.
    prior = "running"
    _attributes = (
        *("target_scaler_", "_one_output", "_log_floor", "_noise_mass", "noise_", "_beyond"),
        *Committee._attributes,
    )
    _optional_attributes = (*Committee._optional_attributes, "noise_", "_beyond")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _untrained(self) -> State[Hierarchy]:
        if self._noise_mass is not None and not hasattr(self, "noise_"):
            raise ValueError("what a regressor knows of its noise must come with `noise_`.")
        untrained, n_targets = super()._untrained(), len(self.target_scaler_.mean_)
        if self._extension and not self._extension.is_possible(self._n_inputs, n_targets):
            raise ValueError("ends of the inputs and slopes beyond must fit inputs and targets.")
        return untrained

    def _samples(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, counts: Counts | None = None
    ) -> Samples:
        X, y, weight = self._checked(X, y, sample_weight, reset=reset, numeric=True)
        return Samples(X, self._columns(y, reset=reset), weight)

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

        error = error_of_rows if utility == "likelihood" else None
        return Problem(
            n_inputs,
            expert,
            Judge(UTILITIES[utility], ROW_SCORES[utility], error),
            _random_order,
            partial(grow, log_floor=self._log_floor, linear=self.expert != "constant"),
        )

    def _fit_samples(self, samples: Samples, **settings: Any) -> None:
        self._noise_mass: np.ndarray | None = None
        super()._fit_samples(samples, **settings)

    def _hierarchy(self) -> Hierarchy:
        hierarchy = self.state_.model
        if (beyond := self._extension) is not None:
            # The same for all experts.
            parts = [
                jax.device_put(np.broadcast_to(np.float32(part), (*hierarchy.sizes, *part.shape)))
                for part in beyond
            ]
            extended = Extended(hierarchy.last_experts, *parts)
            hierarchy = eqx.tree_at(lambda h: h.last_experts, hierarchy, extended)
        if self.utility == "student_t":
            wider = Widened(hierarchy.last_experts, math.log(T_DEVIATION))
            return eqx.tree_at(lambda h: h.last_experts, hierarchy, wider)
        if self._noise_mass is None:
            return hierarchy
        log_noise = np.log(self.noise_ / self.target_scaler_.scale_).astype(np.float32)
        log_noise = log_noise.reshape(*hierarchy.sizes, -1)
        calibrated = Calibrated(hierarchy.last_experts, jnp.asarray(log_noise))
        return eqx.tree_at(lambda h: h.last_experts, hierarchy, calibrated)

    def _set_noise(self, read: ReadBlocks, n_rows: int) -> None:
        """Set each expert's noise to the root mean square error on what it is responsible for.

        A squared error rewards no honest deviation: that of an answer is set by β₂ alone. A
        likelihood does.
        """
        if self.utility in LIKELIHOODS:
            return
        scale = self.target_scaler_.scale_
        square, mass = measure_errors(self.state_.model, read())
        if self._noise_mass is not None:
            steps = -(-n_rows // self._trainer().batch_size(n_rows))
            kept = self.momentum_expert**steps * self._noise_mass
            square += kept[:, None] * (self.noise_ / scale) ** 2
            mass += kept
        self.noise_: np.ndarray = root_mean_square(square, mass) * scale
        self._noise_mass = mass

    def _set_scales(self, samples: Samples, rows: Rows) -> None:
        self._noise_mass = None
        self._fit_scalers(samples.X, samples.y, rows)

    def _is_out_of_scale(self, samples: Samples) -> bool:
        kept = not self.standardise or fits(self.target_scaler_, samples.y, samples.weight)
        return not kept or super()._is_out_of_scale(samples)

    @property
    def _extension(self) -> Beyond | None:
        # Files of version 0.2.0 know nothing of it.
        known = getattr(self, "_beyond", None)
        return None if known is None else Beyond(*known)

    def _set_beyond(self, samples: Samples, distances: Distances) -> None:
        """Find where experts end and a line continues: farther out, that of rows nearer by."""
        X, y, _ = samples
        middle, learned = distances.middle, distances.learned
        near = Reach.of_experts(X, learned, middle) if self.standardise else middle
        ranges = [(near, learned)]
        ranges += [(middle.widened(n), distances.within(n)) for n in (FAR, *distances.farther())]
        parts = []
        for ends, rows in ranges:
            # Rows come in the order of a hash: the first of them are a random sample.
            own, weight = rows.position[:MOST_RANGED], rows.weight[:MOST_RANGED]
            low, high = (self._standardised(end).astype(float) for end in ends)
            x, targets = self._standardised(X[own]).astype(float), self._targets(y[own])
            line = (x, targets.astype(float), weight)
            parts.append(Beyond.fit(low, high, *line, certain=ends is not near))
        found = Beyond.stack(parts)
        if self.expert == "constant":
            found = found._replace(slope=np.zeros_like(found.slope))
        self._beyond = tuple(found)

    def _fit_scalers(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> None:
        self._fit_scaler(X, rows)
        own, weight = y[rows.position], rows.weight
        self.target_scaler_ = StandardScaler().fit(own, sample_weight=weight)
        if not self.standardise:
            self.target_scaler_ = unscaled(own.shape[1])
        least = np.asarray([least_deviation(column, weight) for column in own.T])
        self._log_floor = np.log(np.maximum(least / self.target_scaler_.scale_, np.exp(-WIDEST)))


def _random_order(table: Table, random: np.random.Generator) -> RowNumbers:
    return random.permutation(len(table.x))
