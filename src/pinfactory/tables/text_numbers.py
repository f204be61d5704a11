"""Numbers that are text: with the sign of a currency or percent, or marks between thousands."""

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

# How 1234.5 may be written, with the marks between thousands and before decimals.
FORMS = {"1,234.5": ("[,' \u00a0\u202f]", "[.]"), "1.234,5": ("[.' \u00a0\u202f]", "[,]")}
_SIGN = "([$€£¥₹%]?)"
_NUMBERS = {
    form: re.compile(
        rf"([-−]?) ?{_SIGN}\s?([-−]?)"
        rf"(\d+|[1-9]\d{{0,2}}(?:{thousand}\d{{3}})+)(?:{decimal}(\d+))?\s?{_SIGN}"
    )
    for form, (thousand, decimal) in FORMS.items()
}


class _Number(NamedTuple):
    value: float
    written: str  # its form with its sign, such as $1,234.5
    marked: bool  # whether it has a mark between digits


def _read(word: str, form: str) -> _Number | None:
    found = _NUMBERS[form].fullmatch(word.strip())
    if found is None:
        return None
    minus, before, inner, whole, decimals, after = found.groups()
    if (minus and inner) or (before and after) or before == "%":
        return None
    digits = re.sub(r"\D", "", whole)
    value = float(f"{digits}.{decimals or 0}") * (-1.0 if minus or inner else 1.0)
    return _Number(value, before + form + after, digits != whole or decimals is not None)


def number_forms(words: Iterable[str]) -> tuple[str, ...]:
    """Return how all words are written as numbers: one form, or two if that cannot be told.

    None if all are plain digits: what was made text on purpose is a category.
    """
    distinct, found = list(dict.fromkeys(words)), {}
    for form in FORMS:
        read = [_read(distinct[0], form)] if distinct else [None]
        read = [_read(word, form) for word in distinct] if read[0] else read
        known = [number for number in read if number is not None]
        if len(known) == len(read) and len({number.written for number in known}) == 1:
            found[known[0].written] = known
    if not found or all(re.fullmatch(r"-?\d+(\.\d+)?", word.strip()) for word in distinct):
        return ()
    if len(found) == 2:
        one, other = found.values()
        same = all(a.value == b.value for a, b in zip(one, other, strict=True))
        # A mark before three digits that some numbers lack is one between thousands: the decimals
        # of all numbers that have any would not be three.
        if same or not all(number.marked for number in one):
            return tuple(found)[:1] if same else (_of_thousands(found),)
    return tuple(found)


def _of_thousands(found: dict[str, list[_Number]]) -> str:
    """Return the form in which numbers are larger."""
    return max(found, key=lambda form: sum(abs(number.value) for number in found[form]))


def parse_numbers(words: np.ndarray, written: str) -> Float[np.ndarray, " n"]:
    """Return words as numbers in a form, with its sign or without; empty ones as missing."""
    form = next(form for form in FORMS if form in written)
    known = {"": np.nan}
    for word in set(words.tolist()) - {""}:
        number = _read(word, form)
        if number is None or number.written not in (written, form):
            raise ValueError(f"{word!r} is not written as {written}")
        known[word] = number.value
    return np.asarray([known[word] for word in words.tolist()])
