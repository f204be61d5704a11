"""What becomes of one column: `Column`."""

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import narwhals as nw
import numpy as np
from jaxtyping import Float

from pinfactory.formats import quantity

from . import frames

Kind = Literal["number", "boolean", "category", "left out"]
Part = Literal["", "year", "month", "weekday", "hour"]
# A level in fewer rows, or a share of one twentieth of a small table, is one of the others.
FEWEST, FEWEST_SHARE, FEWEST_OF_ALL = 10, 0.05, 3
# … and so are those after so many more frequent ones.
MOST_LEVELS = 40
OTHER, MISSING = "(other)", frames.MISSING
NO_VALUE = "no value in any row"
# Values farther from the middle 95 % of a column than so many lengths of it are outliers.
FAR = 7.0


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
    #: The range of numbers.
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  #: whether all numbers were whole
    note: str = ""  #: why the column was left out, or what its numbers count
    #: Whether what is missing or unknown stays so, as NaN, and the first category needs no
    #: indicator, being what the others are not: as a density has it.
    keeps_gaps: bool = False

    @property
    def label(self) -> str:
        """Return its name for readers."""
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def indicated(self) -> tuple[str, ...]:
        """Return all that a category column tells apart."""
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

    def strange(self, values: np.ndarray) -> str:
        """Describe values that were not seen in `fit`; "" if there are none."""
        if self.kind == "category":
            new = sorted(set(values.tolist()) - set(self.indicated) - {OTHER, MISSING})
            known = self.has_missing or self.n_missing or self.keeps_gaps
            if not known and (values == MISSING).any():
                new.append("a missing value")
            # Which levels were rare in `fit` is not stored.
            new = [] if self.n_grouped else new
            told = ", ".join(map(repr, new[:3])) + (", …" if len(new) > 3 else "")
            return f"{told} in column {self.label!r}" if new else ""
        gone = not self.n_missing and not self.keeps_gaps and np.isnan(values).any()
        return f"missing values in column {self.label!r}" if gone else ""

    def read(self, series: nw.Series) -> np.ndarray:
        """Return the user's values: numbers with NaN, or text with `MISSING`."""
        if self.part:
            return frames.date_part(frames.dates(series), self.part)
        if self.kind == "category":
            words, missing = frames.texts(series)
            return np.where(missing, MISSING, words)
        if not series.dtype.is_numeric() and series.dtype not in (nw.Boolean, nw.Duration):
            return _forced(series, self.kind)
        return frames.numbers(series)

    def shown(self, value: Any) -> str:
        """Return one of the user's values for readers."""
        if isinstance(value, str):
            return value
        if np.isnan(value):
            return MISSING
        if self.kind == "boolean":
            return str(value > 0.5)
        return frames.day_of(value) if self.part == "year" else quantity(value)

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
            return ", ".join(filter(None, (f"{len(self.levels)} categories", rare, gaps)))
        if gaps and not self.keeps_gaps:
            gaps += f" set to {quantity(self.fill, 4)}"
            gaps += ", with an indicator" if self.has_missing else ""
        whole = {"number": "" if gaps else "as it is", "boolean": "0 for false, 1 for true"}[
            self.kind
        ]
        same = "the same in all rows" if self.low == self.high and not gaps else ""
        return ", ".join(filter(None, (self.note, same or whole, gaps)))


def learn(series: nw.Series, *, keep_gaps: bool = False) -> list[Column]:
    """Return what is to be done to a column, by what it holds; see `Column.keeps_gaps`."""
    found = _learned(series)
    return [_with_gaps(column) for column in found] if keep_gaps else found


def _with_gaps(column: Column) -> Column:
    """Return a column in which what is missing has no indicator."""
    shares = column.shares
    if column.kind == "category" and column.has_missing:
        shares = tuple(share / (1.0 - shares[-1]) for share in shares[:-1])
        if len(shares) < 2:
            note = "hardly any row differs"
            return Column(
                column.name, "left out", column.part, n_missing=column.n_missing, note=note
            )
    return replace(column, shares=shares, has_missing=False, keeps_gaps=True)


def _learned(series: nw.Series) -> list[Column]:
    name, dtype = series.name, series.dtype
    if dtype.is_numeric():
        return [_number(name, frames.numbers(series))]
    if dtype == nw.Duration:
        return [_number(name, frames.numbers(series), note="in days")]
    if dtype == nw.Boolean:
        return [_number(name, frames.numbers(series), kind="boolean")]
    if dtype in frames.DATES:
        return _dates(name, frames.dates(series))
    if dtype in (nw.String, nw.Categorical, nw.Enum, nw.Object, nw.Unknown):
        words, missing = frames.texts(series)
        if set(words[~missing]) <= {"True", "False"} and not missing.all():
            return [_number(name, _truths(words), kind="boolean")]
        held = frames.held(series)
        if held == "numbers":
            return [_number(name, _forced(series, "number"))]
        if held == "dates":
            return _dates(name, frames.dates(series))
        return [_category(name, np.where(missing, MISSING, words))]
    raise ValueError(
        f"column {name!r} must hold numbers, booleans, text, categories or dates, but holds "
        f"{dtype}: leave it out, or turn it into one of these."
    )


def fewest(n_rows: int) -> int:
    """Return the rows below which a level is one of the others."""
    return max(FEWEST_OF_ALL, min(FEWEST, int(FEWEST_SHARE * n_rows)))


def _number(
    name: str, values: np.ndarray, *, kind: Kind = "number", part: Part = "", note: str = ""
) -> Column:
    known = values[~np.isnan(values)]
    if not len(known):
        return Column(name, "left out", part, note=NO_VALUE)
    n_missing = len(values) - len(known)
    return Column(
        name,
        kind,
        part,
        n_missing=n_missing,
        has_missing=n_missing >= fewest(len(values)),
        fill=float(known.mean() if kind == "boolean" else _median(known)),
        low=float(known.min()),
        high=float(known.max()),
        whole=bool((known == np.round(known)).all()),
        note=note,
    )


def middle_range(
    values: Float[np.ndarray, "n *d"], weight: Float[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, "2 *d"]:
    """Return the ends of the middle 95 % of every column."""
    return np.quantile(values, (0.025, 0.975), axis=0, weights=weight, method="inverted_cdf")


def _median(values: Float[np.ndarray, " n"]) -> float:
    """Return the median of all values but outliers, the same whether there are any."""
    low, high = middle_range(values)
    most = FAR * (high - low) or np.inf
    return float(np.median(values[(values >= low - most) & (values <= high + most)]))


def _category(name: str, values: np.ndarray, part: Part = "") -> Column:
    words, counts = np.unique(values.astype(str), return_counts=True)
    missing = words == MISSING
    n_missing = int(counts[missing].sum())
    words, counts = words[~missing], counts[~missing]
    order = np.lexsort((words, -counts))
    kept = [i for i in order if counts[i] >= fewest(len(values))][:MOST_LEVELS]
    n_rare = int(counts.sum() - counts[kept].sum())
    if n_rare and (odd := frames.no_number(np.repeat(words, counts))):
        warnings.warn(
            f"column {name!r} has numbers but for text such as {odd!r}, so that it is taken as "
            "categories, most of them rare; empty such cells to make it numbers.",
            stacklevel=2,
        )
    has_other, has_missing = (n >= fewest(len(values)) for n in (n_rare, n_missing))
    if len(kept) + has_other + has_missing < 2:
        note = "hardly any row differs" if kept else "nearly every row has another value"
        note = note if len(words) else NO_VALUE
        return Column(name, "left out", part, n_missing=n_missing, note=note)
    totals = [
        *counts[kept],
        *([n_rare] if has_other else []),
        *([n_missing] if has_missing else []),
    ]
    return Column(
        name,
        "category",
        part,
        tuple(words[kept].tolist()),
        tuple((np.asarray(totals) / np.sum(totals)).tolist()),
        len(words) - len(kept),
        has_other,
        n_missing,
        has_missing,
    )


def _dates(name: str, values: np.ndarray) -> list[Column]:
    """Return the parts of a date that differ between rows."""
    known = values[~np.isnat(values)]
    parts = [
        part for part in get_args(Part)[1:] if len(np.unique(frames.date_part(known, part))) > 1
    ]
    if not parts:
        note = "one date in all rows" if len(known) else NO_VALUE
        return [Column(name, "left out", note=note)]
    learned = [
        _number(name, frames.date_part(values, part), part=part)
        if part in ("year", "hour")
        else _category(name, frames.date_part(values, part), part)
        for part in parts
    ]
    return [column for column in learned if column.kind != "left out"] or learned[:1]


def _truths(words: np.ndarray) -> Float[np.ndarray, " n"]:
    return np.asarray([{"True": 1.0, "False": 0.0}.get(word, np.nan) for word in words.tolist()])


def _forced(series: nw.Series, kind: Kind) -> Float[np.ndarray, " n"]:
    """Return a column that was numbers or booleans in `fit` and is neither now."""
    words, missing = frames.texts(series)
    try:
        if kind == "boolean" and set(words[~missing]) <= {"True", "False"}:
            return _truths(words)
        return np.asarray([float(word or "nan") for word in words.tolist()])
    except ValueError as error:
        raise ValueError(
            f"column {series.name!r} must hold {kind}s, as in fit, but {error}."
        ) from error
