"""What one number or category changes in an expert's answers: `Weight`."""

from typing import NamedTuple

from pinfactory.formats import quantity

# Weights below this are told for more than one unit, but not for more than so many.
SMALL, MOST_UNITS = 1e-4, 10**9


class Weight(NamedTuple):
    """Effect of one number, or of one category, on an expert's answer.

    Attributes
    ----------
    column, level
        The user's column, and the category ("" for a number).
    output
        Which class or target it is about; "" if there is one answer.
    value, error
        The weight in the user's units and its standard error. That of a category is the
        difference from the average over all rows (of two categories: from the first).
    rows
        For a category, how many of the expert's rows have it.
    """

    column: str
    level: str
    output: str
    value: float
    error: float
    rows: int

    def text(self) -> str:
        """Return weight and error with a sign; what is small for one unit, for 1,000 and so on."""
        sign, units = "+" if self.value > 0 else "", 1
        size = abs(self.value)
        least = min(filter(None, (size, self.error)), default=0.0)
        # An error far smaller than its weight does not make a large number of that.
        while 0.0 < least * units < SMALL and size * units < 1.0 and units < MOST_UNITS:
            units *= 1000
        told = f"{sign}{quantity(self.value * units, 3)} ± {quantity(self.error * units, 2)}"
        return told if units == 1 else f"{told} for {units:,}"
