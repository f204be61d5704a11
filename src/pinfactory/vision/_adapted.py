"""What adapting to a task of images gives: an ordinary classifier."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float

from pinfactory import settings as check
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.padding import padded, padded_length
from pinfactory.meta.evaluation import Routing, answers
from pinfactory.meta.experts import Question
from pinfactory.meta.one_task import TaskClassifier
from pinfactory.meta.tasks import Samples


class AdaptedImages(TaskClassifier):
    """Recognise a class of images that a few samples show.

    Parameters
    ----------
    learner : ImageSpecialists
        A fitted meta-learner.
    inner_steps : int, optional
        Gradient steps of the adaptation, if another number than in training.
    routing : {"mixture", "best"}, default="mixture"
        Who answers: all experts weighted by their responsibility for the task, or the most
        responsible one alone.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The labels, sorted; the second is the class to be recognised, so that with labels 0 and 1,
        or False and True, positives are 1 or True.
    responsibilities_ : ndarray of shape (n_experts,)
        p(m|support set).
    expert_ : int
        The most responsible expert.
    """

    def __init__(
        self, learner: Any, *, inner_steps: int | None = None, routing: Routing = "mixture"
    ) -> None:
        self.learner = learner
        self.inner_steps = inner_steps
        self.routing = routing

    def _adapt(self, X: Any, codes: np.ndarray) -> None:
        check.choice("routing", self.routing, ("mixture", "best"))
        self.hierarchy_ = self.learner._with_steps(self.inner_steps)
        self.support_ = Samples(*jax.device_put((self._inputs(X), codes)))
        self.responsibilities_ = np.asarray(_select(self.hierarchy_, self.support_), float)
        self.expert_ = int(self.responsibilities_.argmax())

    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        X = self._inputs(X)
        query = jax.device_put(padded(X, padded_length(len(X))))
        return np.asarray(_ask(self.hierarchy_, self.support_, query, self.routing))[: len(X)]


@eqx.filter_jit
def _select(hierarchy: Hierarchy, support: Samples) -> Float[Array, " m"]:
    return hierarchy.select(Question(support, support.x)).probs


@eqx.filter_jit
def _ask(
    hierarchy: Hierarchy, support: Samples, query: Float[Array, "q h w"], routing: Routing
) -> Float[Array, "q 2"]:
    answer = answers(hierarchy, Question(support, query), routing)
    assert isinstance(answer, Categorical)
    return answer.probs
