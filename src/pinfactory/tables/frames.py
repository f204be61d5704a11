"""Frames of pandas, polars and Arrow, seen alike through narwhals."""

import hashlib
from datetime import date
from decimal import Decimal
from numbers import Real
from typing import Any, Literal

import narwhals as nw
import numpy as np
from jaxtyping import Bool, Float, UInt64

from pinfactory.core.batches import hashed

from .text_dates import parse_dates
from .text_numbers import parse_numbers

# What stands for a missing text.
MISSING = "(missing)"
DATES = (nw.Date, nw.Datetime)
NO_NUMBERS = (nw.String, nw.Categorical, nw.Enum, *DATES)
# Fractions of this size and more are not exact as whole numbers.
LARGEST_WHOLE = 2**53
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def as_frame(data: Any) -> nw.DataFrame | None:
    """Return a data frame with named columns, or None for anything else.

    A frame whose columns are numbered is an array to scikit-learn, and so it is here.
    """
    try:
        frame = nw.from_native(data, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise ValueError(f"every column must have a name of its own. {error}") from error
    if isinstance(frame, nw.LazyFrame) and frame.implementation.is_polars():
        raise TypeError("a lazy frame holds no rows yet: pass frame.collect().")
    if not isinstance(frame, nw.DataFrame):
        return None
    if all(isinstance(name, str) for name in frame.columns):
        return frame
    text = [name for name, dtype in frame.schema.items() if dtype in NO_NUMBERS]
    if not any(isinstance(name, str) for name in frame.columns) and text:
        raise ValueError(
            f"columns must have names of text unless all hold numbers, but {text[0]!r} holds "
            f"{frame.schema[text[0]]}: try X.columns = X.columns.astype(str)."
        )
    return None


def numbers(series: nw.Series) -> Float[np.ndarray, " n"]:
    """Return a column of numbers, booleans or durations (as days), with NaN for what is missing."""
    if series.dtype == nw.Duration:
        days = series.cast(nw.Duration("us")).to_numpy().astype("timedelta64[us]")
        return np.where(np.isnat(days), np.nan, days.astype(float) / 86_400e6)
    values = np.asarray(series.cast(nw.Float64).to_numpy(), float)
    if np.isinf(values).any():
        raise ValueError(f"column {series.name!r} must hold finite numbers, but has infinite ones.")
    return values


def zone_of(series: nw.Series) -> str:
    """Return the time zone of a column of dates, "" if they have none."""
    if isinstance(series.dtype, nw.Datetime):
        return series.dtype.time_zone or ""
    if series.dtype != nw.Object:
        return ""
    held = [value for value in series.drop_nulls().to_numpy() if isinstance(value, date)]
    zones = sorted({str(getattr(value, "tzinfo", None) or "") for value in held})
    if len(zones) > 1:
        told = ", ".join(zone or "none" for zone in zones)
        raise ValueError(f"column {series.name!r} must have one time zone, but has {told}.")
    return zones[0] if zones else ""


def dates(series: nw.Series, zone: str | None = None, order: str = "") -> np.ndarray:
    """Return a column of dates in the times of a zone or its own.

    Of text, too, in an order of day, month and year if there is one, or else in ISO format.
    """
    own = zone_of(series)
    if zone is not None and own != zone:
        if not own or not zone or series.dtype == nw.Object:
            raise ValueError(
                f"column {series.name!r} must have times of {zone or 'no zone'}, as in fit, but "
                f"has those of {own or 'no zone'}."
            )
        series = series.dt.convert_time_zone(zone)
    if series.dtype not in DATES:
        words, missing = texts(series)
        if own:
            rows = zip(series.to_numpy(), missing, strict=True)
            clock = ["" if gone else str(value.replace(tzinfo=None)) for value, gone in rows]
            words = np.asarray(clock, object)
        try:
            if series.dtype.is_numeric() and not missing.all():
                raise ValueError("numbers")
            if order:
                return parse_dates(words, order)
            return np.where(missing, "NaT", words).astype(str).astype("datetime64[us]")
        except ValueError as error:
            told = f"column {series.name!r} must hold dates, as in fit, but holds {error}."
            raise ValueError(told) from error
    if isinstance(series.dtype, nw.Datetime) and series.dtype.time_zone is not None:
        series = series.dt.replace_time_zone(None)
    return np.asarray(series.cast(nw.Datetime("us")).to_numpy()).astype("datetime64[us]")


def date_part(values: np.ndarray, part: str) -> np.ndarray:
    """Return a part of dates: the year with its fraction, the hour, the month or the weekday."""
    gone, day = np.isnat(values), values.astype("datetime64[D]")
    if part == "year":
        year = values.astype("datetime64[Y]")
        start, end = (y.astype("datetime64[us]").astype(float) for y in (year, year + 1))
        length = np.where(gone, 1.0, end - start)
        share = (values.astype("datetime64[us]").astype(float) - start) / length
        return np.where(gone, np.nan, year.astype(float) + 1970.0 + share)
    if part == "hour":
        return np.where(gone, np.nan, (values - day).astype(float) / 3600e6)
    names = np.asarray(MONTHS if part == "month" else WEEKDAYS, object)
    number = values.astype("datetime64[M]").astype(int) if part == "month" else day.astype(int) + 3
    return np.where(gone, MISSING, names[number % len(names)])


def day_of(year: float) -> str:
    """Return the day that a year with a fraction stands for."""
    start, end = (np.datetime64(f"{int(year) + i:04d}", "s") for i in (0, 1))
    return str((start + (end - start) * (year - int(year))).astype("datetime64[D]"))


def texts(series: nw.Series) -> tuple[np.ndarray, Bool[np.ndarray, " n"]]:
    """Return a column as text, and where it is missing."""
    missing = np.asarray(series.is_null().to_numpy(), bool)
    values = series.to_numpy()
    if series.dtype == nw.String:
        return np.where(missing, "", values).astype(object), missing
    words = ["" if gone else _word(v) for v, gone in zip(values, missing, strict=True)]
    return np.asarray(words, object), missing


def hash_frame(frame: nw.DataFrame) -> UInt64[np.ndarray, " n"]:
    """Return a hash of what each row of a frame holds, the same for all ways to store it."""
    code = np.zeros(len(frame), np.uint64)
    for name in frame.columns:
        code = hashed(code, _bits(frame[name]))
    return code


def _bits(series: nw.Series) -> UInt64[np.ndarray, " n"]:
    """Return the values of a column as 64-bit numbers, equal ones for equal values."""
    if series.dtype.is_numeric() or series.dtype in (nw.Boolean, nw.Duration):
        values = numbers(series)
        # One number for both zeros, and one for all that is missing.
        return np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)
    if series.dtype in DATES:
        return dates(series).view(np.uint64)
    words, missing = texts(series)
    words[missing] = MISSING
    listed = words.tolist()
    digests = {
        word: int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
        for word in dict.fromkeys(listed)
    }
    return np.asarray([digests[word] for word in listed], np.uint64)


def _word(value: Any) -> str:
    """Return a value as text: a whole number has no point, whether a gap made it a fraction."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < LARGEST_WHOLE
    return str(int(value)) if whole else str(value)


def held(series: nw.Series) -> Literal["numbers", "dates", ""]:
    """Return what a column of an unknown type holds, if it is all numbers or all dates."""
    if series.dtype not in (nw.Object, nw.Unknown):
        return ""
    values = [value for value in series.drop_nulls().to_numpy() if not isinstance(value, bool)]
    if len(values) < len(series.drop_nulls()) or not values:
        return ""
    if all(isinstance(value, Real | Decimal) for value in values):
        return "numbers"
    return "dates" if all(isinstance(value, date) for value in values) else ""


def truths(words: np.ndarray) -> Float[np.ndarray, " n"]:
    """Return words "True" and "False" as 1 and 0, others as NaN."""
    return np.asarray([{"True": 1.0, "False": 0.0}.get(word, np.nan) for word in words.tolist()])


def parsed(series: nw.Series, kind: str, written: str = "") -> Float[np.ndarray, " n"]:
    """Return a column that is a "number" or "boolean" by its kind, but has another type."""
    words, missing = texts(series)
    try:
        if kind == "boolean" and not all(map(_is_number, words[~missing])):
            if odd := sorted(set(words[~missing]) - {"True", "False"}):
                raise ValueError(f"{odd[0]!r} is none")
            return truths(words)
        if written:
            return parse_numbers(words, written)
        return np.asarray([float(word or "nan") for word in words.tolist()])
    except ValueError as error:
        raise ValueError(
            f"column {series.name!r} must hold {kind}s, as in fit, but {error}."
        ) from error


def no_number(words: np.ndarray) -> str:
    """Return the most frequent text that is no number, if most are numbers; "" otherwise."""
    distinct, counts = np.unique(words.astype(str), return_counts=True)
    wrong = np.asarray([not _is_number(word) for word in distinct.tolist()], bool)
    if not 0 < counts[wrong].sum() < len(words) / 2:
        return ""
    return str(distinct[np.argmax(counts * wrong)])


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
