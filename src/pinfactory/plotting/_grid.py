"""Which features a picture shows, and how far it reaches."""

import numbers
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np

from pinfactory.tables import Column, Encoding, as_frame

# More categories than this crowd an axis.
MOST_LEVELS = 12


def feature_names(estimator: Any, n_features: int) -> list[str]:
    """Return the names of the numbers that a model sees: those of `fit`, or x0, x1 and so on."""
    encoding = getattr(estimator, "encoding_", None)
    if encoding is not None:
        return [feature.name for feature in encoding.features]
    return list(getattr(estimator, "feature_names_in_", [f"x{i}" for i in range(n_features)]))


def feature_indices(features: Sequence[int | str] | None, names: list[str]) -> list[int]:
    """Return the positions of one or two features given by number or name."""
    if features is None:
        return list(range(min(2, len(names))))
    indices = [names.index(f) if f in names else f for f in features]
    known = all(isinstance(i, numbers.Integral) and 0 <= i < len(names) for i in indices)
    if not known or len(set(indices)) != len(features) or len(indices) not in (1, 2):
        raise ValueError(
            f"`features` must be one or two of the numbers below {len(names)} or names of "
            f"features, but got {features!r}."
        )
    return [int(i) for i in indices]


def reach(values: np.ndarray, resolution: int) -> np.ndarray:
    """Return a grid a little beyond the values, but not below zero if none of them is."""
    low, high = np.nanmin(values), np.nanmax(values)
    margin = 0.08 * (high - low) or max(1.0, 0.08 * abs(low))
    start = low - margin if low < 0.0 else max(low - margin, 0.0)
    return np.linspace(start, high + margin, resolution)


class Slice(NamedTuple):
    """A slice through the space of inputs along one or two features."""

    asked: Any  # the rows to ask about, one for each point of the grid
    shape: tuple[int, ...]  # points along each axis of the grid
    drawn: np.ndarray | slice  # which of the user's rows can be drawn
    # Arguments of the picture: grid, points, names, note, and for frames ticks and target.
    picture: dict[str, Any]


def slice_of_array(
    estimator: Any, X: Any, features: Sequence[int | str] | None, resolution: int
) -> Slice:
    """Return the grid of one or two features, with the others at their median."""
    columns = np.asarray(X, float)
    if columns.ndim != 2 or not columns.size:
        raise ValueError(f"`X` must hold rows of features, but got a shape of {columns.shape}.")
    names = feature_names(estimator, columns.shape[1])
    chosen = feature_indices(features, names)
    axes = [reach(columns[:, i], resolution) for i in chosen]
    mesh = np.meshgrid(*axes)
    points = np.tile(np.median(columns, axis=0), (mesh[0].size, 1))
    for i, values in zip(chosen, mesh, strict=True):
        points[:, i] = values.ravel()
    asked: Any = points
    if (frame := as_frame(X)) is not None:
        columns_of = dict(zip(frame.columns, points.T, strict=True))
        asked = nw.from_dict(columns_of, backend=frame.implementation).to_native()
    elif hasattr(X, "columns"):  # numbered
        asked = type(X)(points, columns=X.columns)
    picture = {
        "grid": axes,
        "points": columns[:, chosen],
        "names": [names[i] for i in chosen],
        "note": "the other features at their median" if len(chosen) < len(names) else "",
    }
    return Slice(asked, mesh[0].shape, slice(None), picture)


def slice_of_frame(
    estimator: Any, X: Any, features: Sequence[int | str] | None, resolution: int
) -> Slice:
    """Return the grid of one or two columns through the row that is nearest to all medians."""
    encoding, frame = estimator.encoding_, nw.from_native(X, eager_only=True)
    usable = [c for c in encoding.columns if c.kind != "left out" and not c.part]
    names = [column.name for column in usable]
    if features is None:
        rules = getattr(estimator, "rules_", ())
        asked = Counter(name for rule in rules for name in rule.asked if name in names)
        first = [w.column for rule in rules for w in rule.weights[:1]]
        ranked = [*(name for name, _ in asked.most_common()), *first, *names]
        features = [name for name in dict.fromkeys(ranked) if name in names][:2]
    columns = [usable[i] for i in feature_indices(features, names)]
    values = [column.read(frame[column.name]) for column in columns]
    axes, ticks, points = zip(*(map(_axis, columns, values, [resolution] * 2)), strict=True)
    mesh = np.meshgrid(*axes)
    typical = _typical_row(encoding, X)
    asked_frame = frame[[typical] * mesh[0].size]
    for column, places, levels in zip(columns, mesh, ticks, strict=True):
        chosen: Any = places.ravel()
        if column.kind == "boolean":
            chosen = chosen > 0.5
        elif levels:
            chosen = [levels[int(i)] for i in chosen]
        series = nw.new_series(column.name, chosen, backend=frame.implementation)
        asked_frame = asked_frame.with_columns(series.alias(column.name))
    drawn = np.flatnonzero(np.isfinite(points).all(axis=0))
    note = "the other columns as in the most typical row" if len(usable) > len(columns) else ""
    picture = {
        "grid": list(axes),
        "points": np.stack(points, axis=1)[drawn],
        "names": [column.name for column in columns],
        "ticks": [*ticks, None],
        "note": note,
        "target": getattr(estimator, "target_name_", "") or "target",
    }
    return Slice(asked_frame.to_native(), mesh[0].shape, drawn, picture)


def _axis(
    column: Column, values: np.ndarray, resolution: int
) -> tuple[np.ndarray, tuple[str, ...] | None, np.ndarray]:
    """Return the grid of a column, names of its categories, and where rows are on it.

    Rows of one category are spread a little, so that they can be told apart.
    """
    spread = 0.3 * np.sin(np.arange(len(values)))
    if column.kind == "boolean":
        return np.arange(2.0), ("False", "True"), values + spread
    if column.kind == "category":
        levels = column.levels[:MOST_LEVELS]
        place = {level: float(i) for i, level in enumerate(levels)}
        rows = np.asarray([place.get(value, np.nan) for value in values.tolist()])
        return np.arange(len(levels), dtype=float), levels, rows + spread
    known = values[np.isfinite(values)]
    low, high = np.quantile(known, (0.005, 0.995))
    return reach(known[(known >= low) & (known <= high)], resolution), None, values


def _typical_row(encoding: Encoding, X: Any) -> int:
    numbers = encoding.transform(X)
    distance = np.abs(numbers - np.nanmedian(numbers, axis=0)) / (
        np.nanstd(numbers, axis=0) + 1e-12
    )
    # What is missing is never typical.
    return int(np.nan_to_num(distance, nan=1e9).sum(axis=1).argmin())
