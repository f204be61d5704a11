"""What adapting a few-shot baseline to a task gives: an ordinary classifier."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.batches import padded, padded_length
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.meta.adapted import OneTaskClassifier
from pinfactory.meta.tasks import Samples


class AdaptedBaseline(OneTaskClassifier):
    """Classifier of images for one task, made by `adapt`.

    Parameters
    ----------
    learner : FewShotBaseline
        A fitted learner.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted; as many as in the tasks learned from, or fewer.
    """

    _takes_fewer = True

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    @with_library_settings
    def _adapt(self, X: Any, codes: np.ndarray) -> None:
        self.model_ = self.learner.model_
        self.support_ = Samples(*jax.device_put((X, codes)))

    @with_library_settings
    def _probs(self, X: Any) -> Float[np.ndarray, "n classes"]:
        X = self._inputs(X)
        # Padding would count where samples are normalised by each other.
        alone = self.learner.blocks == 1 or not self.learner.transductive
        query = padded(X, padded_length(len(X))) if alone else X
        return np.asarray(_probabilities(self.model_, self.support_, jax.device_put(query)))[
            : len(X)
        ]


@compiled_fully
def _probabilities(
    model: Any, support: Samples, query: Float[Array, "q ..."]
) -> Float[Array, "q ways"]:
    return jax.nn.softmax(model(support, query), axis=-1)
