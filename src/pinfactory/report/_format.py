"""Numbers and times as a reader wants them."""

import math


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
