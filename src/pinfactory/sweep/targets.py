"""What a sweep evaluates: whether the grid fits it, and which code and data it depends on."""

import inspect
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import joblib
from sklearn.base import BaseEstimator

from .estimators import FitAndScore
from .evaluation import Evaluate
from .fingerprint import dependencies
from .points import Point, name_of


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
