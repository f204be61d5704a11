"""`MetaSpecialistRegressor`: experts for families of regression tasks."""

from dataclasses import dataclass

import numpy as np

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core import utilities
from pinfactory.core.learning import Utility
from pinfactory.persistence import register

from .adapted import AdaptedRegressor
from .learner import MetaSpecialist
from .parameters import ATTRIBUTES, PARAMETERS
from .tasks import Samples

UTILITIES: dict[str, Utility] = {
    "squared_error": utilities.squared_error,
    "huber": utilities.huber,
    "likelihood": utilities.log_likelihood,
}


@register("MetaSpecialistRegressor")
@describe(parameters=PARAMETERS, attributes=ATTRIBUTES)
@dataclass(kw_only=True, eq=False, repr=False)
class MetaSpecialistRegressor(MetaSpecialist[AdaptedRegressor]):
    """Learn to predict numbers in new tasks from a few samples, with experts for kinds of tasks.

    A selector sees the whole support set of a task and chooses an expert; the expert adapts to
    the support set and answers the queries (Section 5.1). Inputs and targets are standardised
    inside, so that a β means the same whatever their units.

    Parameters
    ----------
    {parameters}
    utility : {"squared_error", "huber", "likelihood"}, default="squared_error"
        What an answer is worth, in standardised units; expected over the answer's own noise.

    Attributes
    ----------
    {attributes}

    Examples
    --------
    >>> import numpy as np
    >>> from pinfactory.meta import MetaSpecialistRegressor
    >>> from pinfactory.meta.tasks import Sinusoids
    >>> tasks = Sinusoids(shots=10)
    >>> learner = MetaSpecialistRegressor(n_experts=2, max_iter=1000, random_state=0).fit(tasks)
    >>> learner.evaluate(tasks).mean < 1.0
    True
    >>> x = np.linspace(-4, 4, 10)[:, None]
    >>> learner.adapt(x, 2.0 * np.sin(x[:, 0] + 1.0)).predict([[0.5]]).shape
    (1,)
    """

    utility: str = "squared_error"
    _is_classification, _adapted = False, AdaptedRegressor

    def _utility(self) -> Utility:
        return UTILITIES[check.choice("utility", self.utility, list(UTILITIES))]

    def _count_outputs(self, samples: Samples) -> int:
        if samples.y.ndim != 2 or not np.issubdtype(samples.y.dtype, np.floating):
            raise ValueError(
                "targets of regression tasks must be vectors of numbers, but got samples of shape "
                f"{samples.y.shape[1:]} and type {samples.y.dtype}; use MetaSpecialistClassifier "
                "for class labels."
            )
        return samples.y.shape[1]
