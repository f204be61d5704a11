"""`SpecialistClassifier`: a committee that sorts samples into classes."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.validation import check_is_fitted

from pinfactory.base import describe
from pinfactory.core.compiling import compiled_fully
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Expert, FamilyExpert, Hierarchy
from pinfactory.core.information import marginal
from pinfactory.core.learning import Data
from pinfactory.persistence import register

from .committee import Committee
from .drawn import Counts, check_labels, check_present
from .fitting import Judge, Problem
from .large import answered
from .parameters import ATTRIBUTES, PARAMETERS
from .splits import grow
from .stream import Samples
from .table import RowNumbers, Rows, Table, is_array

Routing = Literal["mixture", "best", "sampled"]


@register("SpecialistClassifier")
@describe(parameters=PARAMETERS, attributes=ATTRIBUTES)
@dataclass(kw_only=True, eq=False, repr=False)
class SpecialistClassifier(ClassifierMixin, Committee):
    """Classify with a few simple experts and a selector that sends each sample to one of them.

    Selector and experts maximise the expected log-likelihood of the labels minus the price of the
    information they process (equations 7, 10 and 11 of the paper). Inputs are standardised
    internally, so a β has the same meaning in any units.

    Parameters
    ----------
    {parameters}
    prior : {"running", "uniform"}, default="running"
        Whether priors follow the posteriors, or are uniform (the confidence penalty).
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.

    Attributes
    ----------
    classes_ : ndarray
        The labels.
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import make_circles
    >>> from pinfactory import SpecialistClassifier
    >>> X, y = make_circles(400, factor=0.4, noise=0.05, random_state=0)
    >>> committee = SpecialistClassifier(n_experts=4, random_state=0).fit(X, y)
    >>> bool(committee.score(X, y) > 0.97)
    True
    >>> committee.responsibilities(X).shape
    (400, 4)
    """

    prior: str = "running"
    class_weight: dict | str | None = None

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Any = None,
        checkpoint: str | Path | None = None,
    ) -> "SpecialistClassifier":
        """Train the committee.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples, an array or a data frame. Those that need not fit into memory may be a
            `numpy.memmap`, the path of Parquet files, an Arrow data set, a Dask array or data
            frame, or `pinfactory.estimators.chunked.LocalChunks`.
        y : array-like of shape (n_samples,), or str
            Their labels, of any type; the name of their column for files and data sets.
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

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "SpecialistClassifier":
        """Continue training with a batch of samples, in any order.

        A random sample of up to 4,096 earlier rows is kept in memory, and as many of them as there
        are new rows are used again. The first batch sets the scale of the inputs; if it does not
        fit later batches, training restarts from the sample. `information_` is that of the
        samples of the last call.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, optional
            All labels that will ever occur; needed in the first call.

        Returns
        -------
        self
        """
        with self._learning():
            first = not hasattr(self, "state_")
            check_present(y)
            X, y, weight = self._checked(X, y, sample_weight, reset=first, numeric=False)
            check_labels(y)
            if first:
                if classes is None:
                    raise ValueError("`classes` must be given in the first call of partial_fit.")
                self.classes_ = np.unique(classes)
            elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
                raise ValueError(
                    "`classes` must be the same in every call of partial_fit, but got "
                    f"{np.unique(classes)!r} after {self.classes_!r}."
                )
            if self.class_weight == "balanced":
                raise ValueError(
                    "`class_weight` must be a dict or None for partial_fit, which cannot know how "
                    "frequent the classes will be, but got 'balanced'."
                )
            codes = self._codes(y, weight)
            self._fit_batch(Samples(X, codes, self._class_weighted(y, codes, weight)))
        return self

    def predict_proba(self, X: Any, *, routing: Routing = "mixture") -> np.ndarray:
        """Return the probability of every class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        routing : {"mixture", "best", "sampled"}, default="mixture"
            Who answers: all experts weighted by their responsibility, the most responsible one
            alone, or one drawn by responsibility (the paper's generative process).

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        probs = np.exp(self._routed(X, routing).log_probs)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any, *, routing: Routing = "mixture") -> np.ndarray:
        """Return the most probable class; `routing` as in `predict_proba`."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X, routing=routing).argmax(axis=1)]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; samples and labels may be read in chunks, as in `fit`."""
        if is_array(X) or (parts := answered(self, X, y, sample_weight)) is None:
            return super().score(X, y, sample_weight)
        right = [(float(np.sum(part.y == part.X)), len(part)) for part in parts]
        n_right, n = np.sum(right, axis=0)
        return float(n_right / n)

    def expert_predict(self, X: Any, expert: int) -> np.ndarray:
        """Return the most probable class in the opinion of one expert."""
        answers = self._ask_expert(X, expert)
        return self.classes_[answers.log_probs.argmax(axis=1)]

    # ------------------------------------------------------------ what makes it a classifier

    _attributes = ("classes_", *Committee._attributes)

    def _samples(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool, counts: Counts | None = None
    ) -> Samples:
        check_present(y)
        X, y, weight = self._checked(X, y, sample_weight, reset=reset, numeric=False)
        check_labels(y)
        classes = np.unique(y[weight > 0]) if counts is None else counts.labels
        if len(classes) < 2:
            raise ValueError(
                "`y` must hold at least two classes, but got one class: "
                f"{classes[0]!r} (in samples with a weight above zero)."
            )
        if reset:
            self.classes_ = classes
        codes = self._codes(y, weight)
        totals = None if counts is None else counts.n
        return Samples(X, codes, self._class_weighted(y, codes, weight, totals))

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.int32)

    def _measured_targets(self, y: np.ndarray) -> np.ndarray:
        return self._codes(y)

    def _problem(self) -> Problem:
        n_inputs, n_classes = self._n_inputs, len(self.classes_)

        def expert(key: Array) -> Expert:
            return FamilyExpert(self._network(n_inputs, n_classes, key), Categorical.from_logits)

        return Problem(
            n_inputs,
            expert,
            Judge(log_likelihood_of_code, _log_likelihood_of_rows),
            stratified_order,
            partial(grow, n_classes=n_classes, linear=self.expert != "constant"),
        )

    def _codes(self, y: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the positions of the labels in `classes_`."""
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        known = self.classes_[codes] == y
        # A label that occurs only with weight zero is never learned from.
        strange = np.unique(y[~known & (weight > 0)])
        if len(strange):
            raise ValueError(
                f"`y` must hold labels among {self.classes_.tolist()}, but got {strange.tolist()}."
            )
        return np.where(known, codes, 0)

    def _set_scales(self, samples: Samples, rows: Rows) -> None:
        self._fit_scaler(samples.X, rows)

    def _class_weighted(
        self,
        y: np.ndarray,
        codes: np.ndarray,
        weight: np.ndarray,
        total: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the weights of samples times those of their classes, which may be known."""
        if self.class_weight == "balanced":
            if total is None:
                # By weight, not by count: a sample of weight 2 is the same as the sample twice.
                total = np.bincount(codes, weight, minlength=len(self.classes_))
            share = np.where(total > 0, len(total) * total / total.sum(), 1.0)
            return weight / share[codes]
        weight = weight * compute_sample_weight(self.class_weight, y)
        if weight.min() < 0 or not weight.any():
            raise ValueError(
                "`class_weight` must hold no negative weight and leave some samples with a "
                f"weight above zero, but got {self.class_weight!r}."
            )
        return weight

    @staticmethod
    @compiled_fully
    def _mixture(hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Categorical:
        answer = marginal(jax.vmap(hierarchy)(x))
        assert answer is not None
        return answer


def stratified_order(table: Table, random: np.random.Generator) -> RowNumbers:
    """Return an order that takes classes in turn: any part of it has its share of each."""
    order = random.permutation(len(table.x))
    rank = np.empty(len(order))
    for label in np.unique(table.y):
        members = order[table.y[order] == label]
        rank[members] = (np.arange(len(members)) + random.uniform()) / len(members)
    return np.argsort(rank, kind="stable")


def log_likelihood_of_code(answer: Family, code: Int[Array, ""]) -> Float[Array, ""]:
    """Return log p(y) of one class as a masked sum.

    Looking it up would be the same, but the gradient of a lookup is slow on a CPU.
    """
    assert isinstance(answer, Categorical)
    log_probs = answer.log_probs
    return jnp.sum(jnp.where(jnp.arange(log_probs.shape[-1]) == code, log_probs, 0.0))


def _log_likelihood_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return SpecialistClassifier._mixture(hierarchy, data.x).log_prob(data.y)
