"""What the columns of a frame are, by what they hold: `learn`."""

import warnings
from dataclasses import replace
from typing import get_args

import narwhals as nw
import numpy as np
from jaxtyping import Float

from . import frames
from .columns import DAYS, MISSING, OF_TEXT, OTHER, Column, Kind, Part
from .text_dates import date_orders
from .text_numbers import number_forms

# A level in fewer rows, or a share of one twentieth of a small table, is one of the others.
FEWEST, FEWEST_SHARE, FEWEST_OF_ALL = 10, 0.05, 3
# … and so are those after so many more frequent ones.
MOST_LEVELS = 40
NO_VALUE = "no value in any row"
# Values farther from the middle 95 % of a column than so many lengths of it are outliers.
MIDDLE, FAR = (0.025, 0.975), 7.0


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
        return [_number(name, frames.numbers(series), note=DAYS)]
    if dtype == nw.Boolean:
        return [_number(name, frames.numbers(series), kind="boolean")]
    if dtype in frames.DATES:
        return _dates(series)
    if dtype in (nw.String, nw.Categorical, nw.Enum, nw.Object, nw.Unknown):
        words, missing = frames.texts(series)
        if set(words[~missing]) <= {"True", "False"} and not missing.all():
            note = OF_TEXT if dtype in (nw.String, nw.Categorical, nw.Enum) else ""
            return [_number(name, frames.truths(words), kind="boolean", note=note)]
        held = frames.held(series)
        if held == "numbers":
            return [_number(name, frames.parsed(series, "number"))]
        if held == "dates":
            return _dates(series)
        return _of_text(series, np.where(missing, MISSING, words), words[~missing].tolist())
    raise ValueError(
        f"column {name!r} must hold numbers, booleans, text, categories or dates, but holds "
        f"{dtype}: leave it out, or turn it into one of these."
    )


def _of_text(series: nw.Series, words: np.ndarray, known: list[str]) -> list[Column]:
    """Return a column of text: dates or numbers, if all are written alike, or a category."""
    name, forms, orders = series.name, number_forms(known), date_orders(known)
    if len(orders) == 1:
        return _dates(series, orders[0])
    if len(forms) == 1:
        numbers = frames.parsed(series, "number", forms[0])
        column = _number(name, numbers, note=f"{OF_TEXT}, written as {forms[0]}")
        return [replace(column, written=forms[0])]
    column = _category(name, words)
    if not (several := orders or forms):
        return [column]
    kind, plain = ("dates", "2024-01-31") if orders else ("numbers", "1234.5")
    doubt = f"{' or '.join(several)} cannot be told"
    warnings.warn(
        f"column {name!r} has {kind}, but {doubt}, so that it is taken as text: write {plain}.",
        stacklevel=2,
    )
    return [replace(column, note=doubt)]


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


def _median(values: Float[np.ndarray, " n"]) -> float:
    """Return the median of all values but outliers, the same whether there are any."""
    low, high = np.quantile(values, MIDDLE, method="inverted_cdf")
    most = FAR * (high - low) or np.inf
    return float(np.median(values[(values >= low - most) & (values <= high + most)]))


def _category(name: str, values: np.ndarray, part: Part = "") -> Column:
    words, counts = np.unique(values.astype(str), return_counts=True)
    missing = words == MISSING
    n_missing = int(counts[missing].sum())
    words, counts = words[~missing], counts[~missing]
    order = np.lexsort((words, -counts))
    # A level that is named like the others together is one of them.
    kept = [i for i in order if counts[i] >= fewest(len(values)) and words[i] != OTHER]
    kept = kept[:MOST_LEVELS]
    n_rare = int(counts.sum() - counts[kept].sum())
    many = n_rare and len(words) > FEWEST  # a few, such as 0, 1 and 2-10, are meant as categories
    if many and (odd := frames.no_number(np.repeat(words, counts))):
        warnings.warn(
            f"column {name!r} has numbers but for text such as {odd!r}, so that it is taken as "
            "categories; empty such cells to make it numbers.",
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


def _dates(series: nw.Series, order: str = "") -> list[Column]:
    """Return the parts of a date that differ between rows."""
    name, values, zone = series.name, frames.dates(series, order=order), frames.zone_of(series)
    known = values[~np.isnat(values)]
    parts = [
        part for part in get_args(Part)[1:] if len(np.unique(frames.date_part(known, part))) > 1
    ]
    if not parts:
        note = "one date in all rows" if len(known) else NO_VALUE
        return [Column(name, "left out", note=note)]
    note = f"of {zone}" if zone else order and f"{OF_TEXT}, {order}"
    learned = [
        _number(name, frames.date_part(values, part), part=part, note=note)
        if part in ("year", "hour")
        else _category(name, frames.date_part(values, part), part)
        for part in parts
    ]
    learned = [replace(column, zone=zone, written=order) for column in learned]
    return [column for column in learned if column.kind != "left out"] or learned[:1]
