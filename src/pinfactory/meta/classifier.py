"""`MetaSpecialistClassifier`: experts for families of classification tasks."""

from dataclasses import dataclass

import numpy as np

from pinfactory.base import describe
from pinfactory.core import utilities
from pinfactory.core.learning import Utility
from pinfactory.persistence import register

from .adapted import AdaptedClassifier
from .learner import MetaSpecialist
from .parameters import ATTRIBUTES, PARAMETERS
from .tasks import Samples


@register("MetaSpecialistClassifier")
@describe(parameters=PARAMETERS, attributes=ATTRIBUTES)
@dataclass(kw_only=True, eq=False, repr=False)
class MetaSpecialistClassifier(MetaSpecialist[AdaptedClassifier]):
    """Learn to tell new classes apart from a few samples, with experts for kinds of classes.

    A selector sees the whole support set of a task and chooses an expert; the expert adapts to
    the support set and answers the queries (Section 5.1). Vectors are standardised inside, images
    are not. Experts of images share one convolutional block by default.

    Parameters
    ----------
    {parameters}

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from pinfactory.meta import MetaSpecialistClassifier
    >>> from pinfactory.meta.tasks import ArrayTasks
    >>> X, y = load_digits(return_X_y=True)
    >>> tasks = ArrayTasks(X, y, ways=2, shots=5, test=0.3)
    >>> learner = MetaSpecialistClassifier(n_experts=2, max_iter=500, random_state=0).fit(tasks)
    >>> learner.evaluate(tasks).mean > 0.85
    True
    """

    _is_classification, _adapted = True, AdaptedClassifier

    def _utility(self) -> Utility:
        return utilities.log_likelihood

    def _count_outputs(self, samples: Samples) -> int:
        if samples.y.ndim != 1 or not np.issubdtype(samples.y.dtype, np.integer):
            raise ValueError(
                "targets of classification tasks must be whole numbers from 0 on, but got samples "
                f"of shape {samples.y.shape[1:]} and type {samples.y.dtype}; use "
                "MetaSpecialistRegressor for numbers."
            )
        if (lowest := int(samples.y.min())) < 0:
            raise ValueError(
                "targets of classification tasks must be whole numbers from 0 on, but got "
                f"{lowest}."
            )
        ways = int(samples.y.max()) + 1
        if len(never := sorted(set(range(ways)) - set(samples.y.tolist()))):
            raise ValueError(
                f"every class of a task must occur in its support set, but {never} never do."
            )
        return ways
