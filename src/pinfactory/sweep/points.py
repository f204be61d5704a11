"""The points of a sweep, and what a worker does at each. Imports little: workers start at once."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from .store import Computed, compute, encode

Point = Mapping[str, Any]


def points_of(grid: Any) -> list[dict[str, Any]]:
    """Return all points of a grid, in its order, each once.

    A mapping from names to values stands for all combinations, the last name running fastest; a
    sequence of mappings is a list of points.
    """
    if isinstance(grid, Mapping):
        for name, values in grid.items():
            if isinstance(values, str) or not isinstance(values, Iterable):
                raise ValueError(
                    f"`grid` must hold a sequence of values for each name, but got {values!r} for "
                    f"{name!r}: write [{values!r}] for a single one."
                )
        rows: list[Point] = [
            dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())
        ]
    else:
        rows = list(grid) if isinstance(grid, Iterable) else [grid]
    for row in rows:
        if not isinstance(row, Mapping) or not all(isinstance(name, str) for name in row):
            raise ValueError(
                "`grid` must be a mapping from names to values, or a sequence of points, each a "
                f"mapping from names to one value, but got {row!r}."
            )
    if not rows:
        raise ValueError("`grid` must hold at least one point, but it is empty.")
    points = [{name: _plain(name, value) for name, value in row.items()} for row in rows]
    return list({name_of(point): point for point in points}.values())


def name_of(point: Point) -> str:
    """Return what a point is called: "beta=0.5, seed=3"."""
    return ", ".join(f"{name}={encode(point[name]).decode()}" for name in sorted(point)) or "-"


def _plain(name: str, value: Any) -> Any:
    """Return a value as Python's own: the same point has the same name and gives the same."""
    value = value.tolist() if hasattr(value, "tolist") else value
    try:
        encode(value)
    except TypeError:
        raise ValueError(
            "`grid` must hold plain values (numbers, strings, None, lists), by which a point is "
            f"found again, but got {value!r} for {name!r}."
        ) from None
    return value


def blocks_of(points: Sequence[Point], size: int) -> list[list[Point]]:
    """Return points that can run side by side: they differ in numbers only, `size` at a time."""
    alike: dict[Any, list[Point]] = {}
    for point in points:
        kinds = {
            name: type(value).__name__ if is_number(value) else value
            for name, value in point.items()
        }
        alike.setdefault(name_of(kinds), []).append(point)
    return [group[k : k + size] for group in alike.values() for k in range(0, len(group), size)]


def is_number(value: Any) -> bool:
    """Return whether a value can differ between points that run side by side."""
    return isinstance(value, int | float) and not isinstance(value, bool)


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
