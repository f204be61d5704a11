"""`MetaSpecialistRegressor`: experts for families of regression tasks."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core import utilities
from pinfactory.core.learning import Utility
from pinfactory.persistence import register

from .adapted import AdaptedRegressor
from .evaluation import Routing
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
class MetaSpecialistRegressor(MetaSpecialist):
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
    _is_classification = False

    def adapt(
        self, X: Any, y: Any, *, inner_steps: int | None = None, routing: Routing = "mixture"
    ) -> AdaptedRegressor:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the support set.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        inner_steps, routing
            As in `evaluate`.

        Returns
        -------
        AdaptedRegressor
            A fitted estimator with `predict` and `score`.
        """
        return AdaptedRegressor(self, inner_steps=inner_steps, routing=routing).fit(X, y)

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
