"""What a worker does at each point. Imports little: plain functions start at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .points import Point
from .store import Computed, compute

Evaluate = Callable[[Point], Any]


@dataclass(frozen=True)
class PointByPoint:
    """Evaluates the points of a block one after the other."""

    evaluate: Evaluate

    def __call__(self, block: Sequence[Point]) -> list[Computed]:
        """Return what each point gives."""
        return [compute(partial(_columns, self.evaluate, point)) for point in block]


def _columns(evaluate: Evaluate, point: Point) -> Mapping[str, Any]:
    return columns_of(evaluate(point), point)


def columns_of(data: Any, point: Point) -> Mapping[str, Any]:
    """Return what a point gives by name: a mapping as it is, anything else as "value"."""
    columns = data if isinstance(data, Mapping) else {"value": data}
    for name in columns:
        if name in point:
            raise ValueError(
                f"the function returns {name!r}, which is the name of a parameter: rename it."
            )
    return columns


@dataclass(frozen=True)
class Call:
    """Calls a function with a point's values as named arguments."""

    function: Callable[..., Any]

    def __call__(self, point: Point) -> Any:
        """Return what the function returns."""
        return self.function(**point)
