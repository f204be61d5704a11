"""What adapting to a task gives: ordinary estimators, fitted to one support set."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.core.families import Categorical, Family, Gaussian
from pinfactory.core.hierarchy import Decision, Expert, Hierarchy
from pinfactory.core.padding import padded, padded_length

from .evaluation import Routing, mixture
from .experts import Question
from .one_task import OneTask, TaskClassifier
from .tasks import Samples


class Adapted(OneTask):
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

    def _adapt(self, X: Any, y: np.ndarray) -> None:
        check.choice("routing", self.routing, ("mixture", "best"))
        hierarchy = self.learner._with_steps(self.inner_steps)
        support = self.learner.scale_(Samples(*jax.device_put((self._inputs(X), y))))
        selection, self.experts_ = _adapt(hierarchy, support)
        self.responsibilities_ = np.asarray(selection.probs, float)
        self.expert_ = int(self.responsibilities_.argmax())
        weights = self.responsibilities_
        if self.routing == "best":
            weights = np.eye(len(weights))[self.expert_]
        self.selection_ = Categorical.from_probs(jax.device_put(weights.astype(np.float32)))

    def _answer(self, X: Any) -> Any:
        check_is_fitted(self)
        X = self._inputs(X)
        x = self.learner.scale_.inputs(padded(X, padded_length(len(X))))
        answer = _ask(self.selection_, self.experts_, jax.device_put(x))
        return jax.tree.map(lambda leaf: np.asarray(leaf, float)[: len(X)], answer)


class AdaptedRegressor(RegressorMixin, Adapted):
    """Predict numbers in one task; see `Adapted`."""

    def fit(self, X: Any, y: Any) -> "AdaptedRegressor":
        """Adapt to the support set of a task."""
        check_is_fitted(self.learner)
        y = np.asarray(y, np.float32)
        self._one_column = y.ndim == 1
        y = y.reshape(len(y), -1)
        n_outputs = self.learner.n_outputs_
        if len(y) != len(X) or y.shape[1] != n_outputs or not np.isfinite(y).all():
            raise ValueError(
                f"`y` must hold {n_outputs} finite number(s) for each of the {len(X)} samples, "
                f"but got an array of shape {y.shape}."
            )
        self._adapt(X, y)
        return self

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """Return the expected targets, and if asked their deviations."""
        answer: Gaussian = self._answer(X)
        scale = self.learner.scale_
        mean = answer.mean * np.asarray(scale.y_deviation) + np.asarray(scale.y_mean)
        std = np.exp(answer.log_scale) * np.asarray(scale.y_deviation)
        if self._one_column:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean


class AdaptedClassifier(Adapted, TaskClassifier):
    """Predict classes in one task; see `Adapted`."""

    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        return np.exp(self._answer(X).log_probs)


@eqx.filter_jit
def _adapt(hierarchy: Hierarchy, support: Samples) -> tuple[Categorical, Expert]:
    """Return p(m|support) and all experts, adapted."""
    selection = hierarchy.select(Question(support, support.x))
    return selection, eqx.filter_vmap(lambda expert: expert.adapt(support))(hierarchy.experts)


@eqx.filter_jit
def _ask(selection: Categorical, experts: Expert, x: Float[Array, "n ..."]) -> Family:
    answers = eqx.filter_vmap(lambda expert: jax.vmap(expert)(x))(experts)
    return mixture(Decision((selection,), answers))
