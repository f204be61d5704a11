"""Short conditions in the user's columns that tell which rows are an expert's."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from pinfactory.tables import MISSING, Column, Encoding

MOST_TERMS = 3
# More rows, of those wanted and of the others, do not find better conditions.
MOST_WANTED, MOST_OTHERS = 1500, 3000
# Cuts of a column in the search by the rows wanted, and by the others.
N_CUTS = 8
# A cut may be rounded if that costs no more of the fidelity.
ROUNDING = 0.001
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
        return f"{column.label} {'>' if self.above else '≤'} {column.compared(self.cut)}"


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
                low_told, high_told = column.compared(low), column.compared(high)
                parts.append(f"{low_told} < {column.label} ≤ {high_told}")
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


def fidelity(
    held: Bool[np.ndarray, " n"], mine: Bool[np.ndarray, " n"], weight: Float[np.ndarray, " n"]
) -> float:
    """Return the F1 score with which rows that are held tell which are mine."""
    return float(f1(weight @ (held & mine), weight @ held, weight @ mine))


def find_condition(
    encoding: Encoding,
    X: Float[np.ndarray, "n d"],
    mine: Bool[np.ndarray, " n"],
    weight: Float[np.ndarray, " n"],
) -> Condition:
    """Return the condition of at most `MOST_TERMS` terms that tells best which rows are mine.

    The terms are found on a sample of the rows that are mine, all of them if they are few, and on
    one of the others; cuts are then moved to where they are best on all rows.
    """
    random, parts, stands_for = np.random.default_rng(0), [], []
    for rows, most in ((np.flatnonzero(mine), MOST_WANTED), (np.flatnonzero(~mine), MOST_OTHERS)):
        drawn = random.permutation(rows)[:most]
        parts.append(drawn)
        stands_for.append(weight[drawn] * (weight[rows].sum() / max(weight[drawn].sum(), 1e-300)))
    sample = np.concatenate(parts)
    terms = _Search(encoding, X[sample], mine[sample], np.concatenate(stands_for)).best()
    for i in 2 * list(range(len(terms))):  # again, when the others are in place
        if not terms[i].levels and encoding.columns[terms[i].column].kind == "number":
            others = Condition((*terms[:i], *terms[i + 1 :]), 0.0)
            inside = others.holds(encoding, X)
            values = X[inside, encoding.places(terms[i].column)[0]]
            moved = _moved(terms[i], values, mine[inside], weight[inside], weight @ mine)
            terms = (*terms[:i], moved, *terms[i + 1 :])
    held = Condition(terms, 0.0).holds(encoding, X)
    return Condition(terms, fidelity(held, mine, weight))


def _moved(
    term: Term, values: np.ndarray, mine: np.ndarray, weight: np.ndarray, total: float
) -> Term:
    """Return a comparison with the shortest of the best cuts, for rows where the others hold.

    `total` is the weight of all rows that are mine.
    """
    order = np.argsort(values, kind="stable")
    values, mass = values[order], np.stack([weight * mine, weight], axis=1)[order].cumsum(axis=0)
    last = np.flatnonzero(np.diff(values))  # of the rows of one value
    if not len(last):
        return term
    hit, size = (mass[-1] - mass[last] if term.above else mass[last]).T
    score = f1(hit, size, total)
    best, worse = int(score.argmax()), np.flatnonzero(score < score.max() - ROUNDING)
    at = int(np.searchsorted(worse, best))
    low = worse[at - 1] + 1 if at else 0
    high = worse[at] - 1 if at < len(worse) else len(last) - 1
    return term._replace(cut=shortest(values[last[low]], values[last[high] + 1]))


class _Search:
    """A beam search over all cuts and sets on some rows, with the weights that they have."""

    def __init__(
        self,
        encoding: Encoding,
        X: Float[np.ndarray, "n d"],
        mine: Bool[np.ndarray, " n"],
        weight: Float[np.ndarray, " n"],
    ) -> None:
        self.encoding, self.X, self.mine, self.weight = encoding, X, mine, weight

    def best(self) -> tuple[Term, ...]:
        """Return the terms of the best condition."""
        terms = []
        for i, column in enumerate(self.encoding.columns):
            if not self.encoding.places(i):
                continue
            terms += self._sets(i) if column.kind == "category" else self._of_number(i, column)
        return self._beam(terms)

    def _masses(self, mask: np.ndarray) -> Float[np.ndarray, "n 2"]:
        """Return what each row in a mask counts among those that are mine, and among all."""
        mass = mask * self.weight
        return np.stack([mass * self.mine, mass], axis=1)

    def _table(self, terms: Sequence[Term]) -> Float[np.ndarray, "k n"]:
        """Return for which rows terms hold, all read as above or inside."""
        held = np.empty((len(terms), len(self.X)))
        for row, term in zip(held, terms, strict=True):
            row[:] = term._replace(above=True).holds(self.encoding, self.X)
        return held

    def _beam(self, terms: Sequence[Term]) -> tuple[Term, ...]:
        """Return the best terms; number 2i is term i, and 2i + 1 its opposite."""
        held, total = self._table(terms), self.weight @ self.mine
        beam: list[tuple[tuple[int, ...], np.ndarray]] = [((), np.ones(len(self.X)))]
        best = float(f1(total, self.weight.sum(), total))
        chosen: tuple[int, ...] = ()
        for _ in range(MOST_TERMS):
            found: dict[frozenset[int], tuple[float, tuple[int, ...], np.ndarray]] = {}
            for path, mask in beam:
                masses = self._masses(mask)
                inside = held @ masses
                both = np.stack([inside, masses.sum(axis=0) - inside], axis=1).reshape(-1, 2)
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
        found = truth if column.kind == "boolean" else self._cuts(index)
        return [*found, Term(index, True, levels=(MISSING,))] if column.has_missing else found

    def _cuts(self, column: int) -> list[Term]:
        """Return cuts between neighbouring values, written as short as possible.

        They part the rows that are mine, and the others, into equal parts, and mine from those
        below and above.
        """
        of_rows = self.X[:, self.encoding.places(column)[0]]
        values = np.unique(of_rows)
        if len(values) < 2 or not self.mine.any():
            return []
        wanted = [of_rows[self.mine].min(), *_parts(of_rows[self.mine])]
        at = np.searchsorted(values, [*wanted, *_parts(of_rows[~self.mine])], "right") - 1
        at[0] -= 1  # below the first that is mine
        below = np.unique(np.clip(at, 0, len(values) - 2))
        return [Term(column, True, shortest(values[i], values[i + 1])) for i in below]

    def _sets(self, index: int) -> list[Term]:
        """Return sets of categories: those with the largest shares of the rows wanted first."""
        names = self.encoding.columns[index].indicated
        codes = level_codes(self.X[:, self.encoding.places(index)])
        count = np.bincount(codes, self.weight, minlength=len(names))
        share = np.bincount(codes, self.weight * self.mine, minlength=len(names))
        share = np.divide(share, count, out=np.zeros(len(names)), where=count > 0)
        order = [names[i] for i in np.argsort(-share, kind="stable") if count[i]]
        sizes = range(1, len(order))
        few = [order[:size] for size in sizes if size <= MOST_LISTED]
        rest = [order[size:] for size in sizes if size > MOST_LISTED >= len(order) - size]
        return [Term(index, True, levels=tuple(levels)) for levels in (*few, *rest)]


def _parts(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " _"]:
    """Return the upper ends of equal parts of some values."""
    shares = np.arange(1, N_CUTS + 1) / N_CUTS
    return np.quantile(values, shares, method="inverted_cdf") if len(values) else values


def shortest(low: float, high: float) -> float:
    """Return the number with the fewest digits that is at least `low` and below `high`."""
    middle = (low + high) / 2.0
    size = int(np.floor(np.log10(max(abs(low), abs(high), 1e-300))))
    for digits in range(-size, 17 - size):
        rounded = float(round(middle, digits))
        if low <= rounded < high:
            return rounded
    return float(low)
