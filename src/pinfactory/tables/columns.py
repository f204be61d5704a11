"""What becomes of one column: `Column`."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import narwhals as nw
import numpy as np
from jaxtyping import Float

from pinfactory.formats import exact, quantity

from . import frames

Kind = Literal["number", "boolean", "category", "left out"]
Part = Literal["", "year", "month", "weekday", "hour"]
OTHER, MISSING = "(other)", frames.MISSING
# Notes about what numbers and truths were.
DAYS, OF_TEXT = "in days", "of text"


class Feature(NamedTuple):
    """One number that a model sees."""

    column: int  #: position of its `Column` in the `Encoding`
    level: str  #: which category it indicates; "" for a number
    name: str  #: its name for readers


@dataclass(frozen=True)
class Column:
    """The encoding of one column of a data frame."""

    #: The user's column, and which part of it if it holds dates.
    name: str
    kind: Kind  #: what it is to the model
    part: Part = ""
    #: The categories that have a feature of their own, the most frequent first.
    levels: tuple[str, ...] = ()
    #: Share of the rows that each indicator is 1 in: of every level, the others, the missing.
    shares: tuple[float, ...] = ()
    #: How many rarer categories there are, and whether those together have an indicator.
    n_grouped: int = 0
    has_other: bool = False
    n_missing: int = 0  #: missing values in the rows of `fit`
    has_missing: bool = False  #: whether they have an indicator of their own
    #: The median of all but outliers (or the share of True), which stands for a missing number.
    fill: float = 0.0
    #: The smallest and the largest number.
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  #: whether all numbers were whole
    note: str = ""  #: why the column was left out, or what its numbers count or were
    zone: str = ""  #: the time zone of dates, if they have one
    #: How dates and numbers that are text are written: month/day/year, $1,234.5.
    written: str = ""
    #: Whether missing and unknown values stay NaN, as a density needs them. The first category
    #: then has no indicator.
    keeps_gaps: bool = False

    @property
    def label(self) -> str:
        """Return its name for readers."""
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def indicated(self) -> tuple[str, ...]:
        """Return the categories that are told apart, with those for rare and missing values."""
        others = ((OTHER,) if self.has_other else ()) + ((MISSING,) if self.has_missing else ())
        return self.levels + others if self.kind == "category" else others

    @property
    def is_plain(self) -> bool:
        """Whether the model sees the numbers as they are."""
        return self.kind == "number" and not self.part and not self.n_missing

    def feature_levels(self) -> tuple[str, ...]:
        """Return what each feature indicates, with "" for the number itself.

        Two categories need one feature, the indicator of the second.
        """
        if self.kind == "left out":
            return ()
        if self.kind == "category":
            return self.indicated[self._first :]
        return ("", MISSING) if self.has_missing else ("",)

    @property
    def _first(self) -> int:
        """Return which of the categories is the first that has a feature."""
        return int(self.keeps_gaps or len(self.indicated) == 2)

    def feature_shares(self) -> Float[np.ndarray, " k"]:
        """Return the share of every feature that is an indicator of a category."""
        return np.asarray(self.shares, float)[self._first :]

    def code(self, value: object) -> Float[np.ndarray, " k"]:
        """Return the features of one of the column's own values, as `values` gives them."""
        if self.kind == "category":
            chosen = [level == value for level in self.indicated]
            if not any(chosen):
                chosen = [level == OTHER for level in self.indicated]
            unknown = [np.nan] * len(chosen) if self.keeps_gaps else self.shares
            gone = not any(chosen) or (self.keeps_gaps and value == MISSING)
            return np.asarray(unknown if gone else chosen, float)[self._first :]
        number = float(value)  # type: ignore[arg-type]
        gone = np.isnan(number)
        coded = np.asarray([self._filled if gone else number, float(gone)])
        return coded[: len(self.feature_levels())]

    @property
    def _filled(self) -> float:
        """Return what stands for a missing number."""
        return np.nan if self.keeps_gaps else self.fill

    def encode(self, values: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Return the features of values as `read` gives them."""
        if self.kind == "category":
            words = values.tolist()
            places = {level: i for i, level in enumerate(dict.fromkeys(words))}
            table = np.asarray([self.code(level) for level in places])
            table = table.reshape(len(places), len(self.feature_levels()))
            return table[[places[word] for word in words]]
        gone = np.isnan(values)
        features = np.column_stack([np.where(gone, self._filled, values), gone])
        return features[:, : len(self.feature_levels())]

    def new_levels(self, values: np.ndarray) -> list[str]:
        """Return categories that were not seen in `fit`."""
        # Which levels were rare in `fit` is not stored.
        if self.kind != "category" or self.n_grouped:
            return []
        return sorted(set(values.tolist()) - set(self.indicated) - {OTHER, MISSING})

    def has_new_gaps(self, values: np.ndarray) -> bool:
        """Whether values are missing, though none were in `fit`."""
        if self.n_missing or self.keeps_gaps:
            return False
        gone = values == MISSING if self.kind == "category" else np.isnan(values)
        return bool(gone.any())

    def read(self, series: nw.Series) -> np.ndarray:
        """Return the user's values: numbers with NaN, or text with `MISSING`."""
        if self.part:
            return frames.date_part(frames.dates(series, self.zone, self.written), self.part)
        if self.kind == "category":
            words, missing = frames.texts(series)
            return np.where(missing, MISSING, words)
        if not series.dtype.is_numeric() and series.dtype not in (nw.Boolean, nw.Duration):
            return frames.parsed(series, self.kind, self.written)
        return frames.numbers(series)

    def told(self, values: np.ndarray) -> np.ndarray:
        """Return values as `read` gives them for readers, rare and unknown categories as such."""
        if self.kind != "category":
            return values.astype(object)

        def name(word: str) -> str:
            if word in self.indicated or word == MISSING:
                return word
            return OTHER if self.has_other else f"{word} (unknown)"

        return np.asarray([name(word) for word in values.tolist()], object)

    def shown(self, value: Any) -> str:
        """Return one of the user's values for readers."""
        if isinstance(value, str):
            return value
        if np.isnan(value):
            return MISSING
        if self.kind == "boolean":
            return str(value > 0.5)
        return frames.day_of(value) if self.part == "year" else quantity(value)

    def compared(self, cut: float) -> str:
        """Return the number in a condition with all digits: rounded, other rows could match it."""
        return frames.day_of(cut) if self.part == "year" else exact(cut)

    def done(self) -> str:
        """Describe the encoding in words."""
        if self.kind == "left out":
            return f"left out: {self.note}"
        gaps = f"{self.n_missing:,} missing" if self.n_missing else ""
        gaps = gaps and gaps + (": integrated out" if self.keeps_gaps else "")
        if self.kind == "category":
            alone = "as missing" if self.keeps_gaps else "as average"
            place = f"grouped as {OTHER}" if self.has_other else f"taken {alone}"
            rare = f"{self.n_grouped:,} rare: {place}" if self.n_grouped else ""
            if gaps and not self.keeps_gaps:
                gaps += ": a category" if self.has_missing else ": taken as average"
            several = "category" if len(self.levels) == 1 else "categories"
            return ", ".join(filter(None, (f"{len(self.levels)} {several}", rare, gaps)))
        if gaps and not self.keeps_gaps:
            gaps += f" set to {quantity(self.fill, 4)}"
            gaps += ", with an indicator" if self.has_missing else ""
        whole = {
            "number": "" if gaps or self.written else "as it is",
            "boolean": "0 for false, 1 for true",
        }[self.kind]
        same = "the same in all rows" if self.low == self.high and not gaps else ""
        return ", ".join(filter(None, (self.note, same or whole, gaps)))
