"""Short conditions in the user's columns that tell which rows are an expert's."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pinfactory.tables import MISSING, Column, Encoding

MOST_TERMS = 3
# More rows do not find better conditions.
MOST_SEARCHED = 3000
# Cuts of a column in the search, and when the cuts that were found are moved.
COARSE, FINE = 15, 63
# So many of the best conditions of a length are continued.
WIDTH = 6
# A further term must raise the fidelity by so much.
WORTH = 0.01
# A set of categories has at most so many members, or lacks at most so many.
MOST_LISTED = 4


class Term(NamedTuple):
    """One comparison: of a number with a cut, or of a category with a set."""

    column: int  # position of the column in the encoding
    # Whether the number must be above the cut, or the category in the set; else the opposite.
    above: bool
    cut: float = 0.0  # what a number is compared with
    levels: tuple[str, ...] = ()  # the set of categories; empty for a number

    def holds(self, encoding: Encoding, X: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        """Return for which rows of numbers it holds."""
        places = encoding.places(self.column)
        if not self.levels:
            return (X[:, places[0]] > self.cut) == self.above
        column = encoding.columns[self.column]
        if self.levels == (MISSING,) and column.kind != "category":
            return (X[:, places[1]] > 0.5) == self.above
        member = np.isin(np.asarray(column.indicated), self.levels)
        return member[level_codes(X[:, places])] == self.above

    def text(self, column: Column) -> str:
        """Return it for readers."""
        if self.levels == (MISSING,):
            return f"{column.label} is {'' if self.above else 'not '}missing"
        if len(self.levels) == 1:
            return f"{column.label} {'=' if self.above else '≠'} {self.levels[0]}"
        if self.levels:
            return f"{column.label} {'' if self.above else 'not '}in {{{', '.join(self.levels)}}}"
        if column.kind == "boolean":
            return column.label if self.above else f"not {column.label}"
        return f"{column.label} {'>' if self.above else '≤'} {column.shown(self.cut)}"


class Condition(NamedTuple):
    """Terms that must all hold, and how well they tell the rows: the F1 score of doing so."""

    terms: tuple[Term, ...]
    fidelity: float

    def holds(self, encoding: Encoding, X: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " n"]:
        """Return for which rows of numbers it holds."""
        held = [term.holds(encoding, X) for term in self.terms]
        return np.logical_and.reduce([np.ones(len(X), bool), *held])

    def text(self, encoding: Encoding) -> str:
        """Return it for readers; two cuts of a number become one range."""
        parts, used = [], set()
        for term in self.terms:
            twin = next((t for t in self.terms if _is_range(term, t)), None)
            column = encoding.columns[term.column]
            if twin is None:
                parts.append(term.text(column))
            elif term.column not in used:
                low, high = sorted((term.cut, twin.cut))
                parts.append(f"{column.shown(low)} < {column.label} ≤ {column.shown(high)}")
                used.add(term.column)
        return " and ".join(parts) or "always"


def _is_range(one: Term, other: Term) -> bool:
    plain = not one.levels and not other.levels
    return plain and one.column == other.column and one.above != other.above


def level_codes(features: Float[np.ndarray, "n k"]) -> Int[np.ndarray, " n"]:
    """Return which of a column's `indicated` levels the features of a category stand for."""
    if features.shape[1] == 1:
        return (features[:, 0] > 0.5).astype(int)
    return features.argmax(axis=1)


def f1(hit: Any, held: Any, mine: Any) -> Any:
    """Return the harmonic mean of precision and recall."""
    return 2.0 * hit / np.maximum(held + mine, 1e-12)


class Conditions:
    """Finds conditions that tell some rows of a table from the others.

    A beam search over all cuts and sets, on a sample of the rows.

    Parameters
    ----------
    encoding
        What was done to the columns.
    X
        All rows as numbers.
    """

    def __init__(self, encoding: Encoding, X: Float[np.ndarray, "n d"]) -> None:
        self.encoding, self.X = encoding, X
        self.rows = np.random.default_rng(0).permutation(len(X))[:MOST_SEARCHED]
        self.sample = X[self.rows]
        self.codes: dict[int, np.ndarray] = {}
        self.numbers: list[Term] = []
        for i, column in enumerate(encoding.columns):
            places = encoding.places(i)
            if places and column.kind == "category":
                self.codes[i] = level_codes(self.sample[:, places])
            elif places:
                self.numbers += self._of_number(i, column)
        self.held = self._table(self.numbers)

    def find(self, mine: Bool[np.ndarray, " n"]) -> Condition:
        """Return the condition of at most `MOST_TERMS` terms that tells best which rows these are.

        Its fidelity is that on all rows.
        """
        wanted = mine[self.rows]
        sets = [term for i, codes in self.codes.items() for term in self._sets(i, codes, wanted)]
        chosen = self._beam([*self.numbers, *sets], [self.held, self._table(sets)], wanted)
        for i, term in enumerate(chosen):  # move every cut to the best of many
            if not term.levels and self.encoding.columns[term.column].kind == "number":
                rest = Condition((*chosen[:i], *chosen[i + 1 :]), 0.0)
                inside = rest.holds(self.encoding, self.sample)
                options = [term, *self._cuts(term.column, FINE)]
                held = self._table(options) * inside
                held = held if term.above else inside - held
                best = f1(held @ wanted, held.sum(axis=1), wanted.sum()).argmax()
                moved = Term(term.column, term.above, options[int(best)].cut)
                chosen = (*chosen[:i], moved, *chosen[i + 1 :])
        held = Condition(chosen, 0.0).holds(self.encoding, self.X)
        return Condition(chosen, float(f1((held & mine).sum(), held.sum(), mine.sum())))

    def _table(self, terms: Sequence[Term]) -> Float[np.ndarray, "k n"]:
        """Return for which rows of the sample terms hold, all read as above or inside."""
        held = np.empty((len(terms), len(self.sample)), np.float32)
        for row, term in zip(held, terms, strict=True):
            row[:] = term._replace(above=True).holds(self.encoding, self.sample)
        return held

    def _beam(
        self, terms: Sequence[Term], tables: Sequence[np.ndarray], mine: np.ndarray
    ) -> tuple[Term, ...]:
        """Return the best terms; number 2i is term i, and 2i + 1 its opposite."""
        held, total = np.concatenate(tables), mine.sum()
        beam: list[tuple[tuple[int, ...], np.ndarray]] = [((), np.ones(len(mine), np.float32))]
        best = float(f1(total, len(mine), total))
        chosen: tuple[int, ...] = ()
        for _ in range(MOST_TERMS):
            found: dict[frozenset[int], tuple[float, tuple[int, ...], np.ndarray]] = {}
            for path, mask in beam:
                inside = held @ np.stack([mask * mine, mask], axis=1)
                both = np.stack([inside, [mask @ mine, mask.sum()] - inside], axis=1).reshape(-1, 2)
                score = f1(both[:, 0], both[:, 1], total)
                for i in np.argsort(-score, kind="stable")[:WIDTH].tolist():
                    key = frozenset((*path, i))
                    if len(key) > len(path) and key not in found:
                        row = 1 - held[i // 2] if i % 2 else held[i // 2]
                        found[key] = (float(score[i]), (*path, i), mask * row)
            ranked = sorted(found.values(), key=lambda item: -item[0])[:WIDTH]
            beam = [(path, mask) for _, path, mask in ranked]
            if not ranked or ranked[0][0] < best + WORTH:
                break
            best, chosen = ranked[0][0], ranked[0][1]
        return tuple(terms[i // 2]._replace(above=i % 2 == 0) for i in chosen)

    def _of_number(self, index: int, column: Column) -> list[Term]:
        """Return what a condition may say of a number or truth."""
        truth = [Term(index, True, 0.5)]
        found = truth if column.kind == "boolean" else self._cuts(index, COARSE)
        return [*found, Term(index, True, levels=(MISSING,))] if column.has_missing else found

    def _cuts(self, column: int, n_cuts: int) -> list[Term]:
        """Return cuts between neighbouring values, written as short as possible."""
        column_values = self.sample[:, self.encoding.places(column)[0]]
        values = np.unique(column_values)
        if len(values) < 2:
            return []
        wanted = np.quantile(column_values, np.arange(1, n_cuts + 1) / (n_cuts + 1))
        below = np.clip(np.searchsorted(values, wanted, "right") - 1, 0, len(values) - 2)
        return [Term(column, True, shortest(values[i], values[i + 1])) for i in np.unique(below)]

    def _sets(self, index: int, codes: np.ndarray, mine: np.ndarray) -> list[Term]:
        """Return sets of categories: those with the largest shares of the rows wanted first."""
        names = self.encoding.columns[index].indicated
        count = np.bincount(codes, minlength=len(names))
        share = np.bincount(codes, mine, minlength=len(names)) / np.maximum(count, 1)
        order = [names[i] for i in np.argsort(-share, kind="stable") if count[i]]
        sizes = range(1, len(order))
        few = [order[:size] for size in sizes if size <= MOST_LISTED]
        rest = [order[size:] for size in sizes if size > MOST_LISTED >= len(order) - size]
        return [Term(index, True, levels=tuple(levels)) for levels in (*few, *rest)]


def shortest(low: float, high: float) -> float:
    """Return the number with the fewest digits that is at least `low` and below `high`."""
    middle = (low + high) / 2.0
    size = int(np.floor(np.log10(max(abs(low), abs(high), 1e-300))))
    for digits in range(-size, 17 - size):
        rounded = float(round(middle, digits))
        if low <= rounded < high:
            return rounded
    return float(low)
