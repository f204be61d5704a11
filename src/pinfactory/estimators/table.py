"""From samples to rows that are ready to be learned from, and those set aside for validation.

Equal rows are merged: neither the order of rows matters, nor whether a row comes twice or with
twice the weight.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int
from sklearn.utils.validation import validate_data

from pinfactory.core.batches import (
    MIX,
    Epochs,
    hash_rows,
    hashed,
    padded,
    padded_length,
    sorted_rows,
)
from pinfactory.core.hierarchy import stack
from pinfactory.core.learning import Data
from pinfactory.tables import FAR, INDICATOR_SCALE, MIDDLE, Encoding

# More repetitions of rows are not told apart; they then weigh more than one.
MOST_REPEATED = 65_536


class Rows(NamedTuple):
    """Rows in an order of their content: where each stands in the table, and its weight."""

    position: np.ndarray
    weight: np.ndarray

    def take(self, chosen: np.ndarray | slice) -> "Rows":
        """Return some of the rows."""
        return Rows(self.position[chosen], self.weight[chosen])

    def parts(self, length: int = 8192) -> "Iterator[Rows]":
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
    chosen = slice(None) if len(kept) == len(x) else kept
    columns = (column[chosen] for column in (*x.T, *y.reshape(len(y), -1).T))
    code = hash_rows(columns, len(kept)) * MIX
    order = sorted_rows(code)
    ordered = code[order]
    if (ordered[1:] > ordered[:-1]).all():  # all are distinct: `unique` takes five times as long
        kept = kept[order]
        return Rows(kept, weight[kept]), ordered
    code, first, group = np.unique(code, return_index=True, return_inverse=True)
    total = np.bincount(group, weights=weight[kept], minlength=len(first))
    return Rows(kept[first], total), code


RowNumbers = Int[np.ndarray, " _"]

# More rows do not judge better, and would be looked at again and again: a table of twice the rows,
# trained twice as long, would take four times as long to judge.
MOST_JUDGED = 10_000
# Enough rows to know the range of a column. Of rows that have another value than most the middle is
# narrower, because a few of them are a larger share. Shorter ranges, beside the values, are errors
# of rounding.
MOST_RANGED, OTHERS, ROUNDING = 20_000, (0.1, 0.9), 1e-9
# The one way of quantiles that knows weights.
METHOD: Literal["inverted_cdf"] = "inverted_cdf"
# How far experts are asked at least, in lengths of the middle 95 % of a column, and the fewest rows
# that tell of a slope farther out.
NEAR, FEW = 1.0, 10
# Steps in which rows farther out are told apart, and the most of them: rows beyond are ignored.
FARTHER, MOST_STEPS = 1.5, 8
# How often the middle is found again, for columns of few values in which it may never stay.
ROUNDS = 10


def is_array(X: Any) -> bool:
    """Return whether samples are an array in memory, neither a frame nor read in chunks."""
    return isinstance(X, np.ndarray) and not isinstance(X, np.memmap)


class FrameInputs:
    """Samples as numbers: a data frame is encoded, an array is taken as it is."""

    encoding_: Encoding
    n_features_in_: int

    @property
    def _n_inputs(self) -> int:
        """Numbers that the model sees of a sample."""
        encoding = getattr(self, "encoding_", None)
        return self.n_features_in_ if encoding is None else len(encoding.features)

    def _encoded(
        self, frame: Any, *, reset: bool, keep_gaps: bool = False
    ) -> Float[np.ndarray, "n d"]:
        """Return a data frame as numbers; `reset` decides what is done to each column."""
        if reset:
            self.encoding_ = Encoding.learn(frame, keep_gaps=keep_gaps)
            self.feature_names_in_ = np.asarray(self.encoding_.names, object)
            self.n_features_in_ = len(self.feature_names_in_)
        elif self.encoding_.is_plain:
            # As everywhere in scikit-learn: the same columns in the same order.
            validate_data(self, frame, reset=False, skip_check_array=True)
        return self.encoding_.transform(frame)

    def _refuse_array(self, *, reset: bool) -> None:
        """Forget what was done to the columns of a frame, or refuse samples that have none."""
        if reset:
            for name in ("encoding_", "target_name_", "rules_"):
                self.__dict__.pop(name, None)
        elif hasattr(self, "encoding_") and not self.encoding_.is_plain:
            raise ValueError(
                f"{type(self).__name__} was fitted on a data frame: `X` must be one with the "
                f"columns {', '.join(self.encoding_.names)}."
            )


class Reach(NamedTuple):
    """How far each column goes."""

    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]

    @classmethod
    def middle(cls, x: Float[np.ndarray, "n d"], rows: Rows) -> "Reach":
        """Return the range of the middle 95 % of rows.

        Where more than half of the rows have one value, it holds the middle 80 % of the others,
        too. Columns in which all rows of it are the same up to rounding have no end.
        """
        sample, weight = x[rows.position[:MOST_RANGED]], rows.weight[:MOST_RANGED]
        low, high = np.quantile(sample, MIDDLE, axis=0, weights=weight, method=METHOD)
        # A value that more than half of the rows have is the median.
        usual = sample == np.quantile(sample, 0.5, axis=0, weights=weight, method=METHOD)
        for n in np.flatnonzero(weight @ usual > 0.5 * weight.sum()):
            others = ~usual[:, n]
            if others.any():
                own = sample[others, n]
                first, last = np.quantile(own, OTHERS, weights=weight[others], method=METHOD)
                low[n], high[n] = min(low[n], first), max(high[n], last)
        ends = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
        return cls(np.where(ends, low, -np.inf), np.where(ends, high, np.inf))

    @classmethod
    def of_experts(cls, x: Float[np.ndarray, "n d"], rows: Rows, middle: "Reach") -> "Reach":
        """Return the range experts predict for: little more than that of a few learned rows."""
        near, most = middle.widened(NEAR), middle.widened(FAR)
        seen = np.sort(x[rows.position[:MOST_RANGED]], axis=0)
        few = min(FEW, len(seen))
        low, high = np.minimum(near.low, seen[few - 1]), np.maximum(near.high, seen[-few])
        return cls(np.maximum(low, most.low), np.minimum(high, most.high))

    @classmethod
    def endless(cls, n_columns: int) -> "Reach":
        """Return a reach that no row is beyond."""
        return cls(np.full(n_columns, -np.inf), np.full(n_columns, np.inf))

    def widened(self, lengths: float) -> "Reach":
        """Return the range and so many times its length on either side."""
        more = lengths * (self.high - self.low)
        return Reach(self.low - more, self.high + more)

    def distance(self, x: Float[np.ndarray, "n d"], rows: Rows) -> Float[np.ndarray, " k"]:
        """Return by how many lengths each row is outside, in the column where it is farthest."""
        ending = np.flatnonzero(np.isfinite(self.low))
        low, high = self.low[ending], self.high[ending]
        found = [np.empty(0)]
        for part in rows.parts():
            values = x[np.ix_(part.position, ending)]
            outside = np.maximum(low - values, values - high) / (high - low)
            found.append(outside.max(axis=1, initial=0.0))
        return np.concatenate(found)


class Distances(NamedTuple):
    """How far each row is outside the middle of those that are learned from."""

    rows: Rows  # all of them
    middle: Reach  # of the rows that are learned from
    lengths: Float[np.ndarray, " n"]  # see `Reach.distance`

    @classmethod
    def find(cls, x: Float[np.ndarray, "n d"], rows: Rows) -> "Distances":
        """Return the distances from the middle of the rows that are no farther than seven lengths.

        That is 29 deviations of a normal distribution, but hardly beyond the tails of counts and
        incomes. The pull of a row on a regression grows with the square of its distance, so that a
        few rows beyond would undo what all others say. The middle is found again without them
        until it stays: all that is learned from the others is then the same as without them.
        """
        lengths = np.zeros(len(rows.position))
        for _ in range(ROUNDS):
            near = lengths <= FAR
            middle = Reach.middle(x, rows.take(near))
            lengths = middle.distance(x, rows)
            if ((lengths <= FAR) == near).all():
                break
        return cls(rows, middle, lengths)

    @property
    def learned(self) -> Rows:
        """Return the rows that are learned from."""
        return self.within(FAR)

    def within(self, lengths: float) -> Rows:
        """Return the rows that are no farther than this."""
        return self.rows.take(self.lengths <= lengths)

    def farther(self) -> list[float]:
        """Return bounds, each half as far again, between which there are rows not learned from."""
        steps = np.log(self.lengths[self.lengths > FAR] / FAR) / np.log(FARTHER)
        return [FAR * FARTHER**n for n in np.unique(np.ceil(steps)) if n <= MOST_STEPS]


class Table(NamedTuple):
    """Rows in an order of their content, standardised, with targets the experts can learn from."""

    x: Float[np.ndarray, "n d"]
    y: np.ndarray
    weight: Float[np.ndarray, " n"]

    def take(self, index: RowNumbers) -> "Table":
        """Return some of the rows."""
        return Table(self.x[index], self.y[index], self.weight[index])

    def padded(self, length: int | None = None) -> Data:
        """Return the rows, and others of no weight, in a length that other tables share."""
        length = length or padded_length(len(self.x))
        return Data(*jax.device_put(tuple(padded(column, length) for column in self)))

    def blocks(self, length: int) -> Iterator[Data]:
        """Return all rows in parts of at most `length`, each padded."""
        for start in range(0, len(self.x), length):
            yield self.take(np.arange(start, min(start + length, len(self.x)))).padded()

    def sample(self, n_rows: int) -> Float[Array, "k d"]:
        """Return about so many inputs, as many of each row as its weight asks for."""
        length = padded_length(min(len(self.x), n_rows))
        share = np.cumsum(self.weight, dtype=float) / np.sum(self.weight, dtype=float)
        chosen = np.searchsorted(share, (np.arange(length) + 0.5) / length)
        return jax.device_put(self.x[np.minimum(chosen, len(share) - 1)])


def indicator_scales(x: Float[np.ndarray, "n d"], rows: Rows) -> Float[np.ndarray, " d"]:
    """Return the scale of each column that has two values, and 0 for all others."""
    ends = [(x[part.position].min(axis=0), x[part.position].max(axis=0)) for part in rows.parts()]
    low, high = np.min([end[0] for end in ends], axis=0), np.max([end[1] for end in ends], axis=0)
    two = np.ones(x.shape[1], bool)
    for part in rows.parts():
        values = x[part.position]
        two &= ((values == low) | (values == high)).all(axis=0)
    scale = INDICATOR_SCALE * high - INDICATOR_SCALE * low
    two &= scale > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.where(two, scale, 0.0)


class Validation(NamedTuple):
    """Which rows each replica learns from, and by which rows it is judged.

    By folds, a candidate has a replica for every fold and one more that learns from all rows and
    is judged by none: the folds tell when it is at its best. `judged` then has a leading axis of
    replicas; otherwise all replicas are judged by the same rows.
    """

    learned: Sequence[RowNumbers]  # rows that each replica of a candidate learns from
    judged_rows: Sequence[RowNumbers]  # rows that each of them is judged by
    judged: Data  # the same as data
    folded: bool  # whether there are folds

    @classmethod
    def part(cls, table: Table, order: RowNumbers, share: float) -> "Validation":
        """Set one part of the rows aside."""
        n_judged = min(max(1, round(share * len(order))), MOST_JUDGED, len(order) - 1)
        judged = order[:n_judged]
        return cls([np.sort(order[n_judged:])], [judged], table.take(judged).padded(), folded=False)

    @classmethod
    def folds(cls, table: Table, order: RowNumbers, n_folds: int) -> "Validation":
        """Set another part aside for each fold, so that every row judges one of them.

        Parts of the order that follow one another: where classes take turns, every third row may
        be of one class.
        """
        judged = [*np.array_split(order, n_folds), order[:0]]
        learned = [np.setdiff1d(order, rows) for rows in judged]
        length = padded_length(len(judged[0]))
        data = stack([table.take(rows).padded(length) for rows in judged])
        return cls(learned, judged, data, folded=True)

    @property
    def n_replicas(self) -> int:
        """Replicas of one candidate."""
        return len(self.learned)

    def judged_together(self, n_candidates: int) -> Data:
        """Return the data that the replicas of so many candidates are judged by."""
        if not self.folded or n_candidates == 1:
            return self.judged
        return jax.tree.map(
            lambda leaf: jax.device_put(np.concatenate([np.asarray(leaf)] * n_candidates)),
            self.judged,
        )


class RowBatches:
    """Batches for replicas that may each learn from other rows of one table."""

    def __init__(self, learned: Sequence[RowNumbers], batch_size: int) -> None:
        self._learned = [rows.astype(np.int32) for rows in learned]
        self._epochs = [Epochs(len(rows), batch_size) for rows in learned]

    def __call__(
        self, seeds: Sequence[Sequence[int]], start: int, n_steps: int
    ) -> Int[np.ndarray, "replicas steps batch"]:
        replicas = zip(self._learned, self._epochs, seeds, strict=True)
        drawn = [rows[epochs([seed], start, n_steps)[0]] for rows, epochs, seed in replicas]
        return np.stack(drawn)
