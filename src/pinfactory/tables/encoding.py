"""What was done to all columns of a frame: `Encoding`."""

import math
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, get_args, get_type_hints

import narwhals as nw
import numpy as np
from jaxtyping import Bool, Float

from pinfactory.formats import WIDTH

from .columns import Column, Feature, Kind, Part
from .kinds import learn

# An indicator is scaled as if its category were in half of the rows. Its own deviation is smaller
# the rarer it is; dividing by that, a penalty on weights would hold back rare categories least.
INDICATOR_SCALE = 0.5


@dataclass(frozen=True)
class Encoding:
    """The encoding of a data frame: how each column becomes numbers.

    Numbers stay as they are, with the median for those that are missing and an indicator if there
    are enough of them. Categories have an indicator each; rare ones share one. Dates become years,
    months, weekdays and hours.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"area": [50.0, 80.0, None] * 5, "street": ["A", "B", "B"] * 5})
    >>> encoding = Encoding.learn(frame)
    >>> encoding.transform(frame)[2].tolist()
    [65.0, 1.0, 0.0]
    >>> print(encoding)
    area    number    5 missing set to 65, with an indicator
    street  category  2 categories
    """

    columns: tuple[Column, ...]

    @classmethod
    def learn(cls, data: Any, *, keep_gaps: bool = False) -> "Encoding":
        """Choose an encoding for each column of a frame; see `Column.keeps_gaps`."""
        frame = nw.from_native(data, eager_only=True)
        if not len(frame) or not frame.columns:
            raise ValueError(f"a table must have rows and columns, but got {frame.shape}.")
        series = (frame[name] for name in frame.columns)
        encoding = cls(tuple(c for each in series for c in learn(each, keep_gaps=keep_gaps)))
        if not encoding.features:
            told = ", ".join(f"{column.name!r} ({column.note})" for column in encoding.columns)
            raise ValueError(f"no column tells rows apart: {told}")
        return encoding

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> "Encoding":
        """Return the encoding that leaves numbers as they are."""
        return cls(tuple(Column(str(name), "number") for name in names))

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """Return what the numbers stand for, in their order."""
        found = []
        for i, column in enumerate(self.columns):
            for level in column.feature_levels():
                name = f"{column.label} = {level}" if level else column.label
                found.append(Feature(i, level, name))
        return tuple(found)

    @property
    def names(self) -> list[str]:
        """Return the user's columns."""
        return list(dict.fromkeys(column.name for column in self.columns))

    @property
    def is_plain(self) -> bool:
        """Whether all columns are numbers without gaps."""
        return all(column.is_plain for column in self.columns)

    @cached_property
    def indicators(self) -> Bool[np.ndarray, " d"]:
        """Return which features are indicators."""
        truths = [c.kind == "boolean" for c in self.columns]
        return np.asarray([bool(f.level) or truths[f.column] for f in self.features])

    def places(self, column: int) -> list[int]:
        """Return the positions of a column's features."""
        return [i for i, feature in enumerate(self.features) if feature.column == column]

    # ------------------------------------------------------------------------------ to numbers

    def values(self, data: Any) -> list[np.ndarray]:
        """Return the user's values of every column in use; columns are found by name."""
        frame = nw.from_native(data, eager_only=True)
        used = [column for column in self.columns if column.kind != "left out"]
        absent = sorted({c.name for c in used} - set(frame.columns))
        if absent:
            raise ValueError(
                f"the table must have all columns of fit, but lacks {_listed(absent)}."
            )
        return [column.read(frame[column.name]) for column in used]

    def transform(self, data: Any) -> Float[np.ndarray, "n d"]:
        """Return the numbers that a model sees; warn of values never seen in `learn`."""
        used = [column for column in self.columns if column.kind != "left out"]
        parts, strange, gaps = [], [], []
        for column, values in zip(used, self.values(data), strict=True):
            if new := column.new_levels(values):
                strange.append(f"{_listed(new, 3)} in column {column.label!r}")
            if column.has_new_gaps(values):
                gaps.append(column.name)
            parts.append(column.encode(values))
        if gaps := list(dict.fromkeys(gaps)):
            several = "columns" if len(gaps) > 1 else "column"
            strange.append(f"missing values in {several} {_listed(gaps)}")
        if strange:
            taken = "missing" if used[0].keeps_gaps else "average"
            warnings.warn(
                f"not seen in fit, and taken as {taken}: {'; '.join(strange)}.", stacklevel=4
            )
        return np.hstack(parts)

    def unused(self, data: Any) -> list[str]:
        """Name what differs between these rows, but was left out because it did not in `learn`."""
        used = {column.label for column in self.columns if column.kind != "left out"}
        frame, found = nw.from_native(data, eager_only=True), []
        # Of a date those parts are used that differ.
        doubtful = {
            column.name for column in self.columns if column.kind == "left out" or column.part
        }
        for name in sorted(doubtful & set(frame.columns)):
            now = [column for column in learn(frame[name]) if column.kind != "left out"]
            found += [column.label for column in now if column.label not in used]
        return found

    # ------------------------------------------------------------------------------- for readers

    def table(self) -> list[tuple[str, str, str]]:
        """Return name, kind and encoding of every column."""
        return [(c.label, f"{c.part and 'date, '}{c.kind}", c.done()) for c in self.columns]

    def __str__(self) -> str:
        rows = self.table()
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        indent = " " * (first + second + 4)
        width = max(WIDTH, len(indent) + 30)
        lines = []
        for label, kind, done in rows:
            head = f"{label:<{first}}  {kind:<{second}}  "
            lines += textwrap.wrap(done, width, initial_indent=head, subsequent_indent=indent)
        return "\n".join(lines)

    # ------------------------------------------------------------------------------------ files

    def to_plain(self) -> list[dict[str, Any]]:
        """Return plain values for a file."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def from_plain(cls, values: Any) -> "Encoding":
        """Return the encoding of plain values from a file, if they are sound."""
        if not isinstance(values, list) or not values:
            raise ValueError("an encoding must be a list of columns")
        encoding = cls(tuple(_column(value) for value in values))
        if not encoding.features:
            raise ValueError("an encoding must have features")
        return encoding


def _listed(names: Sequence[str], most: int = 6) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more


def _column(values: Any) -> Column:
    hints = get_type_hints(Column)
    if isinstance(values, dict):
        values = {"written": ""} | values  # which files of earlier versions do not have
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Column)}:
        raise ValueError("a column must have the fields of a column")
    for name in ("levels", "shares"):
        inner = str if name == "levels" else float
        if type(values[name]) is not tuple or any(type(v) is not inner for v in values[name]):
            raise ValueError(f"{name} of a column must be a tuple of {inner.__name__}")
    for name in hints.keys() - {"levels", "shares", "kind", "part"}:
        if type(values[name]) is not hints[name]:
            raise ValueError(f"{name} of a column must be of type {hints[name].__name__}")
    if values["kind"] not in get_args(Kind) or values["part"] not in get_args(Part):
        raise ValueError("kind and part of a column must be known")
    column = Column(**values)
    if column.kind == "category" and len(column.shares) != len(column.indicated):
        raise ValueError("a category must have a share for each level")
    if not all(math.isfinite(v) for v in (*column.shares, column.fill, column.low, column.high)):
        raise ValueError("numbers of a column must be finite")
    return column
