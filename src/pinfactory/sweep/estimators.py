"""Estimators of a sweep: fitted with a point's settings and judged on held-out rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sklearn.base import BaseEstimator, clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import train_test_split

from .points import Point


@dataclass(frozen=True)
class FitAndScore:
    """Fits an estimator with a point's values as settings and judges it on held-out rows.

    Attributes
    ----------
    estimator
        Has all other settings.
    fitted, held_out
        What `fit` and the scorer are called with after the estimator.
    scorer
        Called with the fitted estimator and `held_out`.
    """

    estimator: BaseEstimator
    fitted: Sequence[Any] = field(repr=False)
    held_out: Sequence[Any] = field(repr=False)
    scorer: Callable[..., float]

    def __call__(self, point: Point) -> dict[str, float]:
        """Return the score and, of a learner of this library, its bits and effective experts."""
        model = clone(self.estimator).set_params(**point)
        model.fit(*self.fitted)
        columns = {"score": float(self.scorer(model, *self.held_out))}
        information = getattr(model, "information_", None)
        if information is not None:
            for stage in ("selector", "experts", "overall"):
                columns[f"information_{stage}"] = float(getattr(information, stage))
        if hasattr(model, "effective_experts_"):
            columns["effective_experts"] = float(model.effective_experts_)
        return columns


def fit_and_score(
    estimator: Any, X: Any, y: Any, *, test_size: float, scoring: Any, random_state: int
) -> FitAndScore:
    """Divide the rows; the same for all points."""
    if X is None:
        raise ValueError("an estimator is fitted on data: give `X`, and `y` if it has targets.")
    if getattr(estimator, "random_state", 0) is None:
        # So that a point gives the same numbers wherever and whenever it runs.
        estimator = clone(estimator).set_params(random_state=random_state)
    arrays = (X,) if y is None else (X, y)
    parts = train_test_split(*arrays, test_size=test_size, random_state=random_state)
    scorer = check_scoring(estimator, scoring)
    return FitAndScore(estimator, parts[::2], parts[1::2], scorer)
