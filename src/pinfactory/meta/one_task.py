"""Ordinary estimators for the samples of one task, whose `fit` is a meta-learner's adaptation."""

from abc import abstractmethod
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted


class OneTask(BaseEstimator):
    """What adapted estimators share: a fitted meta-learner, and inputs like those it learned from.

    A meta-learner tells by `input_shape_` what a sample looks like, and by `n_outputs_` how many
    classes or numbers the answer has.
    """

    learner: Any

    def __sklearn_clone__(self) -> "OneTask":
        """Keep the meta-learner as it is: a clone of it would have to learn again."""
        return type(self)(**self.get_params(deep=False))

    def _inputs(self, X: Any) -> np.ndarray:
        """Return the samples as numbers, after checking that they are like those of training."""
        shape = self.learner.input_shape_
        X = np.asarray(X, np.float32)
        if X.shape[1:] != shape or not len(X):
            raise ValueError(
                f"`X` must be some samples of shape {shape}, as in the tasks learned from, but "
                f"got an array of shape {X.shape}."
            )
        if not np.isfinite(X).all():
            raise ValueError("`X` must be finite, but got NaN or infinity.")
        self.n_features_in_ = int(np.prod(shape))
        return X


class TaskClassifier(ClassifierMixin, OneTask):
    """Predict classes in one task; labels may be of any type.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted; class i of a task as the meta-learner knows them is `classes_[i]`.
    """

    # Whether a task may have fewer classes than those of training.
    _takes_fewer = False

    @abstractmethod
    def _adapt(self, X: Any, codes: Int[np.ndarray, " n"]) -> None:
        """Adapt to a support set whose labels are the numbers of their classes."""

    @abstractmethod
    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        """Return the probability of every class."""

    def fit(self, X: Any, y: Any) -> "TaskClassifier":
        """Adapt to the support set of a task."""
        check_is_fitted(self.learner)
        self.classes_, codes = np.unique(np.asarray(y), return_inverse=True)
        if len(codes) != len(X):
            raise ValueError(
                f"`y` must hold a label for each of the {len(X)} samples, but got {len(codes)}."
            )
        most, n_classes = self.learner.n_outputs_, len(self.classes_)
        if n_classes != most and not (self._takes_fewer and 2 <= n_classes < most):
            number = f"2 to {most}" if self._takes_fewer else most
            raise ValueError(
                f"`y` must hold samples of each of {number} classes, as in the tasks learned from, "
                f"but got {n_classes}: {self.classes_.tolist()}."
            )
        self._adapt(X, codes.astype(np.int32))
        return self

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n classes"]:
        """Return the probability of every class."""
        check_is_fitted(self)
        probs = np.asarray(self._probs(X), float)[:, : len(self.classes_)]
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]
