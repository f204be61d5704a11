"""A random sample of rows that do not fit into memory, the same however they are cut and ordered.

A row is in the sample if the hash of its content is among the smallest. This is known after one
pass, and the next pass knows such a row again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import narwhals as nw
import numpy as np
from jaxtyping import Float, Int, UInt64
from sklearn.utils.multiclass import check_classification_targets

from pinfactory.core.batches import MIX, hash_rows, hashed
from pinfactory.persistence import fingerprint
from pinfactory.tables import Encoding, as_frame, hash_frame

from .chunked import Chunks, Part

# The largest sample, in rows and in numbers that the committee sees.
MOST_ROWS, MOST_NUMBERS = 2**19, 2**25
# So many rows of every class are in the sample, if there are as many.
FEW = 100
# More classes are not learned from chunks: their labels are held in memory.
MOST_CLASSES = 10_000

# How labels of Python, NumPy and pandas that are missing are written.
MISSING = ("None", "nan", "NaT", "<NA>")

Codes = UInt64[np.ndarray, " _"]


def check_present(y: Any) -> None:
    """Raise a ValueError if a label is missing; before the labels are checked in any other way."""
    labels = np.asarray(y)
    if labels.dtype == object and labels.ndim == 1:
        others = (label for label in labels if not isinstance(label, str))
        for label in map(str, others):
            if label in MISSING:
                raise ValueError(f"`y` must have a label for every row, but has {label}.")


def check_labels(y: np.ndarray) -> None:
    """Raise a ValueError if these are no labels of classes."""
    if y.dtype == object and not all(isinstance(label, str) for label in y):
        kinds = ", ".join(sorted({type(label).__name__ for label in y}))
        raise ValueError(
            "Unknown label type: `y` must hold labels that are all text, numbers, booleans or "
            f"NumPy dates, but got an array of objects ({kinds}): convert them with y.astype(str), "
            "or dates with y.astype('datetime64[s]')."
        )
    check_classification_targets(y)


class Counts(NamedTuple):
    """The labels of all rows, and how many rows have each."""

    labels: np.ndarray
    n: Int[np.ndarray, " classes"]

    @classmethod
    def of(cls, y: np.ndarray) -> "Counts":
        """Count the labels of some rows."""
        check_present(y)
        check_labels(y)
        return cls(*np.unique(y, return_counts=True)).checked()

    def join(self, other: "Counts") -> "Counts":
        """Return the counts of all rows."""
        labels, group = np.unique(np.concatenate([self.labels, other.labels]), return_inverse=True)
        n = np.bincount(group, np.concatenate([self.n, other.n])).astype(int)
        return Counts(labels, n).checked()

    def checked(self) -> "Counts":
        """Raise a ValueError if there are too many."""
        if len(self.labels) > MOST_CLASSES:
            raise ValueError(
                f"`y` must have at most {MOST_CLASSES:,} classes in data that are read in chunks."
            )
        return self


@dataclass(frozen=True)
class Drawn:
    """Rows of a sample in parts, the hash of each, and how many rows there are in all.

    `checksum` is that of the samples and targets in all rows, in any order.
    """

    parts: list[Part]
    codes: list[Codes]
    n: int
    counts: Counts | None  # None where targets are numbers
    checksum: int

    def join(self, n_wanted: int, other: "Drawn") -> "Drawn":
        """Return the sample of the rows of both."""
        counts = None
        if self.counts is not None and other.counts is not None:
            counts = self.counts.join(other.counts)
        parts, codes = self.parts + other.parts, self.codes + other.codes
        checksum = (self.checksum + other.checksum) % 2**64
        both = Drawn(parts, codes, self.n + other.n, counts, checksum)
        # Rows are put together again and again, so not each time.
        return both.smallest(n_wanted) if len(both) > 2 * n_wanted else both

    def __len__(self) -> int:
        return sum(map(len, self.codes))

    def smallest(self, n_wanted: int) -> "Drawn":
        """Return the rows with the smallest hashes in their order, and a few rows of each class."""
        part, codes = _concatenated(self.parts), np.concatenate(self.codes)
        order = np.argsort(codes, kind="stable")
        kept = np.arange(len(order)) < n_wanted
        if self.counts is not None:
            kept |= _rank_of_equals(part.y[order]) < FEW
        return replace(self, parts=[_take(part, order[kept])], codes=[codes[order[kept]]])

    @property
    def is_complete(self) -> bool:
        """Whether the sample has all rows."""
        return len(self) == self.n

    @property
    def rows(self) -> Part:
        """Return all rows of the sample."""
        return _concatenated(self.parts)

    def set_aside(self, share: float, most: int) -> "tuple[Drawn, Drawn]":
        """Return a part of the rows, none of rare classes, and the others."""
        part, codes = self.rows, np.concatenate(self.codes)
        chosen = np.arange(len(codes)) < min(max(round(share * len(codes)), 1), most)
        if self.counts is not None:
            frequent = self.counts.labels[self.counts.n > FEW]
            chosen &= np.isin(part.y, frequent)
        # A row and its equals are in one of the two.
        chosen = np.isin(codes, codes[chosen])
        found = [
            replace(self, parts=[_take(part, rows)], codes=[codes[rows]])
            for rows in (np.flatnonzero(chosen), np.flatnonzero(~chosen))
        ]
        return found[0], found[1]

    def weights(self) -> Float[np.ndarray, " n"] | None:
        """Return by how much each row counts, so that classes have their shares of all rows."""
        if self.counts is None:
            return None
        labels, group, n = np.unique(self.rows.y, return_inverse=True, return_counts=True)
        total = self.counts.n[np.searchsorted(self.counts.labels, labels)]
        return (total / n * (len(group) / total.sum()))[group]


def draw(chunks: Chunks, *, classify: bool) -> Drawn:
    """Return a uniform sample of all rows in one pass, or all rows if they are no more."""
    n_wanted = min(MOST_ROWS, MOST_NUMBERS // max(chunks.example.shape[1], 1))
    drawn = chunks.reduce(partial(_pick, classify), partial(_join, n_wanted))
    width = _n_numbers(_take(drawn.parts[0], np.arange(min(len(drawn.parts[0]), 10_000))).X)
    n_wanted = min(n_wanted, MOST_NUMBERS // width)
    return drawn if drawn.n <= n_wanted else drawn.smallest(n_wanted)


def row_codes(X: Any) -> Codes:
    """Return a hash for every row; of equal rows, every further one has another."""
    return _told_apart(_hash_of_each(X))


def _hash_of_each(X: Any) -> Codes:
    """Return a hash of what each row holds."""
    frame = as_frame(X)
    if frame is None:
        x = np.asarray(X)
        return hash_rows(x.T, len(x))
    return hash_frame(frame)


def _told_apart(codes: Codes) -> Codes:
    return hashed(codes, _rank_of_equals(codes).astype(np.uint64)) * MIX


def _pick(classify: bool, part: Part) -> Drawn:
    counts = Counts.of(part.y) if classify else None
    codes = _hash_of_each(part.X)
    checksum = int(np.sum(hashed(codes, _hash_of_targets(part.y)) * MIX, dtype=np.uint64))
    return Drawn([part], [_told_apart(codes)], len(part), counts, checksum)


def _hash_of_targets(y: np.ndarray) -> Codes:
    """Return a hash of the targets of each row."""
    if y.dtype.kind in "biuf":
        columns = y.reshape(len(y), -1).astype(float).T
        return hash_rows(columns, len(y))
    labels, group = np.unique(y, return_inverse=True)
    codes = [int(fingerprint(label), 16) for label in labels]
    return np.asarray(codes, np.uint64)[group]


def _join(n_wanted: int, a: Drawn, b: Drawn) -> Drawn:
    return a.join(n_wanted, b)


def _rank_of_equals(values: np.ndarray) -> Int[np.ndarray, " n"]:
    """Return for each value how many equal ones are before it."""
    _, first_of_group, group = np.unique(values, return_index=True, return_inverse=True)
    if len(first_of_group) == len(values):
        return np.zeros(len(values), int)
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(len(first_of_group)))
    rank = np.empty(len(values), int)
    rank[order] = np.arange(len(values)) - begins[group[order]]
    return rank


def _n_numbers(X: Any) -> int:
    """Return how many numbers the committee sees of a row."""
    return X.shape[1] if as_frame(X) is None else len(Encoding.learn(X).features)


def _take(part: Part, rows: Int[np.ndarray, " k"]) -> Part:
    frame = as_frame(part.X)
    return Part(part.X[rows] if frame is None else frame[rows].to_native(), part.y[rows])


def _concatenated(parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    y = np.concatenate([part.y for part in parts])
    frames = [as_frame(part.X) for part in parts]
    if frames[0] is None:
        return Part(np.concatenate([part.X for part in parts]), y)
    return Part(nw.concat([frame for frame in frames if frame is not None]).to_native(), y)
