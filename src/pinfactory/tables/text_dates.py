"""Dates that are text: in which order they have day, month and year, and which days they are."""

import re
from collections.abc import Iterable

import numpy as np

# Orders that are tried. A year of two digits is the last, and one of 1969 to 2068.
ORDERS = ("year-month-day", "month/day/year", "day/month/year")
FIRST_OF_SHORT = 69
# Such as 2024-01-31, 7/19/1994 0:00 and 19.7.94 6:05 PM.
_DATE = re.compile(
    r"(\d{1,4})([-./])(\d{1,2})\2(\d{1,4})"
    r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?(?: ?([AaPp])[Mm])?)?"
)


def date_orders(words: Iterable[str]) -> tuple[str, ...]:
    """Return the orders in which all words are dates: one, or more if that cannot be told."""
    distinct = [word.strip() for word in dict.fromkeys(words)]
    if not distinct or not all(map(_DATE.fullmatch, distinct)):
        return ()
    return tuple(order for order in ORDERS if all(_iso(word, order) for word in distinct))


def parse_dates(words: np.ndarray, order: str) -> np.ndarray:
    """Return words in an order, or with the year first, as dates; empty ones as missing."""
    known = {"": "NaT"}
    for word in set(words.tolist()) - {""}:
        known[word] = _iso(word.strip(), order) or _iso(word.strip(), ORDERS[0])
    if wrong := [word for word, date in known.items() if not date]:
        raise ValueError(f"{min(wrong)!r}, which is no {order}")
    return np.asarray([known[word] for word in words.tolist()], "datetime64[us]")


def _iso(word: str, order: str) -> str:
    """Return a date in ISO format; "" if it is none in this order."""
    found = _DATE.fullmatch(word)
    if found is None:
        return ""
    parts = dict(zip(re.split("[-/]", order), found.group(1, 3, 4), strict=True))
    year, month, day = parts["year"], parts["month"], parts["day"]
    if len(year) == 2 and order != ORDERS[0]:
        year = f"{19 if int(year) >= FIRST_OF_SHORT else 20}{year}"
    if len(year) != 4 or len(day) > 2:
        return ""
    hour, minute, second, half = found.group(5, 6, 7, 8)
    if half:  # 12 AM is midnight
        if not 1 <= int(hour) <= 12:
            return ""
        hour = str(int(hour) % 12 + 12 * (half in "Pp"))
    clock = f"T{hour:0>2}:{minute}:{second or '00'}" if hour else ""
    date = f"{year}-{month:0>2}-{day:0>2}{clock}"
    try:
        np.datetime64(date)
    except ValueError:
        return ""
    return date
