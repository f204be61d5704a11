"""What adapting to a task gives: ordinary estimators, fitted to one support set."""

from abc import abstractmethod
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import all_or_nothing
from pinfactory.core.batches import padded, padded_length
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.families import Gaussian
from pinfactory.core.hierarchy import Hierarchy

from .evaluation import Routing, answers
from .experts import TaskInput
from .tasks import Samples


class OneTaskEstimator(BaseEstimator):
    """What adapted estimators share: a fitted meta-learner, and inputs like those it learned from.

    A meta-learner has `input_shape_`, the shape of a sample, and `n_outputs_`, the number of
    classes or numbers of an answer.
    """

    learner: Any

    def __sklearn_clone__(self) -> "OneTaskEstimator":
        """Keep the meta-learner as it is: a clone of it would have to learn again."""
        return type(self)(**self.get_params(deep=False))

    @abstractmethod
    def _fit(self, X: Float[np.ndarray, "n ..."], y: Any) -> None:
        """Adapt to samples and targets."""

    def fit(self, X: Any, y: Any) -> Any:
        """Adapt to the support set of a task."""
        check_is_fitted(self.learner)
        with all_or_nothing(self):
            self._fit(self._inputs(X), y)
        return self

    def _inputs(self, X: Any) -> np.ndarray:
        """Return the samples as numbers, after checking that they are like those of training."""
        shape = self.learner.input_shape_
        X = np.asarray(X, np.float32)
        if X.ndim == 0 or X.shape[1:] != shape or not len(X):
            raise ValueError(
                f"`X` must be some samples of shape {shape}, as in the tasks learned from, but "
                f"got an array of shape {X.shape}."
            )
        if not np.isfinite(X).all():
            raise ValueError("`X` must be finite, but got NaN or infinity.")
        self.n_features_in_ = int(np.prod(shape))
        return X


class OneTaskClassifier(ClassifierMixin, OneTaskEstimator):
    """Predict classes in one task; labels may be of any type.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted; class i of a task as the meta-learner numbers them is `classes_[i]`.
    """

    # Whether a task may have fewer classes than those of training.
    _takes_fewer = False

    @abstractmethod
    def _adapt(self, X: Any, codes: Int[np.ndarray, " n"]) -> None:
        """Adapt to a support set whose labels are the numbers of their classes."""

    @abstractmethod
    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        """Return the probability of every class."""

    def _fit(self, X: Float[np.ndarray, "n ..."], y: Any) -> None:
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

    def predict_proba(self, X: Any) -> Float[np.ndarray, "n classes"]:
        """Return the probability of every class."""
        check_is_fitted(self)
        probs = np.asarray(self._probs(X), float)[:, : len(self.classes_)]
        check_finite(probs)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        return self.classes_[self.predict_proba(X).argmax(axis=1)]


class Adapted(OneTaskEstimator):
    """A meta-learner's experts, fitted to one task.

    Its `fit` is adaptation: it is an ordinary estimator for the samples of one task.

    Parameters
    ----------
    learner : MetaSpecialistClassifier or MetaSpecialistRegressor
        A fitted meta-learner.
    inner_steps : int, optional
        Gradient steps of the adaptation, if another number than in training.
    routing : {"mixture", "best"}, default="mixture"
        Who answers: all experts weighted by their responsibility for the task, or the most
        responsible one alone.

    Attributes
    ----------
    responsibilities_ : ndarray of shape (n_experts,)
        p(m|support set).
    expert_ : int
        The most responsible expert.
    """

    def __init__(
        self,
        learner: Any,
        *,
        inner_steps: int | None = None,
        routing: Routing = "mixture",
    ) -> None:
        self.learner = learner
        self.inner_steps = inner_steps
        self.routing = routing

    @with_library_settings
    def _adapt(self, X: Any, y: np.ndarray) -> None:
        check.choice("routing", self.routing, ("mixture", "best"))
        self.hierarchy_ = self.learner.hierarchy(self.inner_steps)
        self.support_ = self.learner.scale_(Samples(*jax.device_put((X, y))))
        self.responsibilities_ = np.asarray(_select(self.hierarchy_, self.support_), float)
        check_finite(self.responsibilities_)
        self.expert_ = int(self.responsibilities_.argmax())

    @with_library_settings
    def _answer(self, X: Any) -> Any:
        """Return the answer to every sample, as host arrays."""
        check_is_fitted(self)
        X = self._inputs(X)
        query = self.learner.scale_.inputs(jax.device_put(padded(X, padded_length(len(X)))))
        answer = _answers(self.hierarchy_, TaskInput(self.support_, query), self.routing)
        return jax.tree.map(lambda leaf: np.asarray(leaf, float)[: len(X)], answer)


class AdaptedRegressor(RegressorMixin, Adapted):
    """Predict numbers in one task; see `Adapted`."""

    def _fit(self, X: Float[np.ndarray, "n ..."], y: Any) -> None:
        y = np.asarray(y, np.float32)
        self._one_column = y.ndim == 1
        y = y.reshape(len(y), -1) if y.size else np.zeros((0, 0), np.float32)
        n_outputs = self.learner.n_outputs_
        if len(y) != len(X) or y.shape[1] != n_outputs or not np.isfinite(y).all():
            raise ValueError(
                f"`y` must hold {n_outputs} finite number(s) for each of the {len(X)} samples, "
                f"but got an array of shape {y.shape}."
            )
        self._adapt(X, y)

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Return the expected targets, and if asked their deviations."""
        answer: Gaussian = self._answer(X)
        scale = self.learner.scale_
        mean = answer.mean * np.asarray(scale.y_deviation) + np.asarray(scale.y_mean)
        std = np.exp(np.asarray(answer.log_scale)) * np.asarray(scale.y_deviation)
        check_finite(np.asarray(mean))
        check_finite(std)
        if self._one_column:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean


class AdaptedClassifier(Adapted, OneTaskClassifier):
    """Predict classes in one task; see `Adapted`."""

    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        return np.exp(self._answer(X).log_probs)


def check_finite(values: np.ndarray) -> None:
    """Refuse answers that are not numbers."""
    if not np.isfinite(values).all():
        raise ValueError(
            "the answers of the adapted experts are not finite: `X` and `y` must be like the "
            "samples of the tasks learned from, but are too far from them."
        )


@compiled_fully
def _select(hierarchy: Hierarchy, support: Samples) -> Float[Array, " m"]:
    return hierarchy.select(TaskInput(support, support.x)).probs


_answers = compiled_fully(answers)
