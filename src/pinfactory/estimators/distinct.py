"""Rows in an order of their content, so that what is learned depends on the data alone.

Equal rows are merged: neither the order of rows matters, nor whether a row comes twice or with
twice the weight.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pinfactory.core.batches import MIX, hash_rows, hashed

# More repetitions of rows are not told apart; they then weigh more than one.
MOST_REPEATED = 65_536


class Rows(NamedTuple):
    """Rows in an order of their content: where each stands in the table, and its weight."""

    position: np.ndarray
    weight: np.ndarray

    def take(self, chosen: np.ndarray | slice) -> "Rows":
        """Return some of the rows."""
        return Rows(self.position[chosen], self.weight[chosen])

    def parts(self, length: int = 65_536) -> "Iterator[Rows]":
        """Return the rows in parts small enough to copy."""
        for start in range(0, len(self.position), length):
            yield self.take(np.s_[start : start + length])


def distinct(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Rows:
    """Merge equal rows, drop rows of no weight, and sort by a hash of the content."""
    return _merged(x, y, weight)[0]


def repeated(x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, classes: bool) -> Rows:
    """Return rows in the order of a hash, as many equal ones as their weight says.

    See `repetitions`; `classes` says whether targets are codes of classes.
    """
    rows, code = _merged(x, y, weight)
    n = repetitions(rows.weight, y[rows.position] if classes else np.zeros(len(code)))
    if (n == 1).all():
        return rows
    # Each repetition has a place of its own in the order, any part of which stands for all.
    which = np.repeat(np.arange(len(n)), n)
    number = np.arange(len(which)) - np.repeat(np.cumsum(n) - n, n)
    again = hashed(code[which], number.astype(np.uint64)) * MIX
    which = which[np.argsort(np.where(number == 0, code[which], again), kind="stable")]
    return Rows(rows.position[which], (rows.weight / n)[which])


def repetitions(weight: Float[np.ndarray, " n"], classes: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return how many rows each distinct row is worth.

    Where the weights of a class are whole multiples of the smallest of them, or whole numbers, a
    row is worth its weight in the largest unit that divides all: what a class weighs counts alike
    for all its rows, and makes no row two. Otherwise a row is one. Together they are no more than
    about `MOST_REPEATED`, if distinct rows are not.
    """
    count = np.ones(len(weight))
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        own = weight[members]
        multiple = own / own.min()
        if np.abs(multiple - np.round(multiple)).max() < 1e-6 and multiple.max() <= MOST_REPEATED:
            count[members] = np.round(multiple)
        elif (own == np.round(own)).all() and own.max() < 2**53:
            count[members] = own // np.gcd.reduce(own.astype(np.int64))
    share = min(MOST_REPEATED / count.sum(), 1.0)
    return np.ceil(count * share - 1e-9).astype(np.int64)


def _merged(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[Rows, np.ndarray]:
    """Return the distinct rows that weigh anything in the order of their hashes, beside these."""
    kept = np.flatnonzero(weight)
    columns = (column[kept] for column in (*x.T, *y.reshape(len(y), -1).T))
    code = hash_rows(columns, len(kept)) * MIX
    code, first, group = np.unique(code, return_index=True, return_inverse=True)
    total = np.bincount(group, weights=weight[kept], minlength=len(first))
    return Rows(kept[first], total), code
