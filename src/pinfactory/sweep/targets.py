"""What a sweep evaluates: an estimator on held-out rows, or a function; and what it depends on."""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import joblib
from sklearn.base import BaseEstimator, clone
from sklearn.metrics import check_scoring
from sklearn.model_selection import train_test_split

from .fingerprint import dependencies
from .points import Evaluate, Point, name_of


@dataclass(frozen=True)
class FitAndScore:
    """Fits an estimator with a point's values as settings and judges it on held-out rows."""

    estimator: BaseEstimator  # has all other settings
    # What `fit` and the scorer are called with after the estimator.
    fitted: Sequence[Any] = field(repr=False)
    held_out: Sequence[Any] = field(repr=False)
    scorer: Callable[..., float]  # called with the fitted estimator and `held_out`

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


def check_names(target: Any, points: Sequence[Point]) -> None:
    """Refuse parameters that the target does not have before anything runs."""
    if isinstance(target, BaseEstimator):
        known = set(target.get_params())
    else:
        try:
            signature = inspect.signature(target)
        except (TypeError, ValueError):  # some builtins
            return
        for point in points:
            try:
                signature.bind(**point)
            except TypeError as error:
                raise ValueError(
                    f"`grid` does not fit the function {target!r}, called with {name_of(point)}: "
                    f"{error}."
                ) from None
        return
    if unknown := {name for point in points for name in point} - known:
        raise ValueError(
            f"`grid` must hold parameters of {type(target).__name__}, but got "
            f"{', '.join(sorted(unknown))}; it has {', '.join(sorted(known))}."
        )


def stamp_of(target: Any, evaluate: Evaluate, replicas: int) -> dict[str, Any]:
    """Return what the numbers of a target depend on, besides the point."""
    fixed: Any = {}
    if isinstance(evaluate, FitAndScore):
        own = [_home(type(target)), _home(FitAndScore)]
        fixed = joblib.hash([evaluate.estimator, evaluate.fitted, evaluate.held_out])
        fixed = [fixed, repr(evaluate.scorer)]
    else:
        function = target
        if isinstance(target, partial):
            function = target.func
            fixed = joblib.hash([target.args, target.keywords])
        own = [_home(function)]
    code = [dependencies(module, [name]) for module, name in own]
    return {
        "target": own,
        "fixed": fixed,
        "replicas": replicas,
        "versions": {name: v for part in code for name, v in part.libraries.items()},
        "source": [part.digest for part in code],
    }


def _home(thing: Any) -> tuple[str, str]:
    """Return module and name of a function or class that a file defines."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    try:
        if not isinstance(module, str) or not name.isidentifier():
            raise TypeError("no name at the top of a module")
        inspect.getfile(sys.modules[module])
    except (TypeError, KeyError):
        raise ValueError(
            "`store` keeps results of functions at the top of a file, whose code tells whether "
            f"they still hold, but got {thing!r}: move it to a module, or leave `store` out."
        ) from None
    if module == "__main__" and (spec := sys.modules[module].__spec__) is not None:
        module = spec.name  # run by `python -m`
    return module, name
