"""Rows of a table in a canonical order."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

# Odd 64-bit multipliers (the fractional digits of the golden ratio, and of MurmurHash's mixer).
_SPREAD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)


class Rows(NamedTuple):
    """Distinct rows: where each first stands in the table, and its weight."""

    position: np.ndarray
    weight: np.ndarray

    def parts(self, length: int = 65_536) -> "Iterator[Rows]":
        """Return the rows in parts small enough to copy."""
        for start in range(0, len(self.position), length):
            part = slice(start, start + length)
            yield Rows(self.position[part], self.weight[part])


def distinct(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
    """Merge equal rows, drop rows of no weight, and sort by a hash of the content.

    What is learned then depends on the data alone: not on the order of the rows, and a row of
    weight 2 is the same as two equal rows.
    """
    kept = np.flatnonzero(weight)
    columns = [*x.T, *y.reshape(len(y), -1).T]
    code = np.zeros(len(kept), np.uint64)
    for column in columns:
        # Adding zero makes −0.0 and 0.0 one number.
        bits = (column[kept].astype(np.float64) + 0.0).view(np.uint64)
        code = (code ^ bits) * _SPREAD
        code ^= code >> np.uint64(32)
    code *= _MIX
    _, first, group = np.unique(code, return_index=True, return_inverse=True)
    total = np.bincount(group, weights=weight[kept], minlength=len(first))
    return Rows(kept[first], total)
