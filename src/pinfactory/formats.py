"""Numbers, times and lines as a reader wants them."""

import math
import textwrap

# What fits 80 columns.
WIDTH = 79


def number(value: float | None) -> str:
    """Return a number with the digits that a reader needs."""
    if value is None:
        return "–"
    value = 0.0 if abs(value) < 1e-9 else value
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.{3 - math.floor(math.log10(size))}f}"
    elif size >= 5e-4 or size == 0:
        text = f"{value:.3f}"
    else:
        text = f"{value:.0e}"
    return text.replace("-", "−")


def duration(seconds: float) -> str:
    """Return a time as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def exact(value: float) -> str:
    """Return a number with all its digits."""
    text = f"{value:,}" if abs(value) >= 1e4 else f"{value}"
    return text.removesuffix(".0").replace("-", "−")


def decimals(value: float, digits: int) -> str:
    """Return a number with so many decimals."""
    return f"{value:z.{digits}f}".replace("-", "−")


def quantity(value: float, digits: int | None = None) -> str:
    """Return a number of the user's data, and years as years; rounded to so many digits if given.

    A fraction has four digits.
    """
    value = value if digits is None else float(f"{value:.{digits}g}")
    size = abs(value)
    if size >= 1e4:
        text = f"{value:,.0f}"
    elif value == round(value):
        text = f"{value:.0f}"
    else:
        text = f"{value:.4g}"
    return text.replace("-", "−")


def wrapped(label: str, text: str, deeper: int = 0) -> list[str]:
    """Return lines that fit 80 columns, with the text beside a label."""
    indent = " " * (len(label) + deeper)
    return textwrap.wrap(
        text, WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    )
