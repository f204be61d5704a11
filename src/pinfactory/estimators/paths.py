"""The exact way to a leaf of a selector that is a tree, in the user's columns and units."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from pinfactory.core.hierarchy import Hierarchy, pick
from pinfactory.networks import FARTHEST_SELECTED, SoftTree
from pinfactory.tables import MISSING, Encoding, Gate

from .committee import Committee
from .conditions import Term, shortest
from .explain import centring, encoding_of


class Path(NamedTuple):
    """The gates on the way to an expert, and for which rows each is passed on its side.

    `terms` are the same as comparisons, if every gate looks at one column only; else None.
    """

    gates: tuple[Gate, ...]
    passed: Bool[np.ndarray, "gates n"]
    terms: tuple[Term, ...] | None

    def holds(self) -> Bool[np.ndarray, " n"]:
        """Return which rows pass all of them."""
        return np.all(self.passed, axis=0)


def find_paths(committee: Committee, X: Float[np.ndarray, "n d"]) -> list[Path] | None:
    """Return the way to every expert, and which rows take it; None if a selector is no tree.

    Gate i of the tree sends a row to its side above if w·z + b > 0, z the standardised row within
    ± `FARTHEST_SELECTED`. A gate whose other side leads to no expert that is available is no gate.
    """
    return _through(committee, committee.state_.model, X)


def _through(
    committee: Committee, hierarchy: Hierarchy, X: Float[np.ndarray, "n d"]
) -> list[Path] | None:
    """Return the ways through all levels of a hierarchy."""
    own = _of_level(committee, hierarchy, X)
    if own is None or not isinstance(hierarchy.experts, Hierarchy):
        return own
    encoding, found = encoding_of(committee), []
    for m, path in enumerate(own):
        below = _through(committee, pick(hierarchy.experts, m), X)
        if below is None:
            return None
        for more in below:
            passed = np.concatenate([path.passed, more.passed])
            terms = None
            if path.terms is not None and more.terms is not None:
                terms = _joined(encoding, [*path.terms, *more.terms])
            found.append(Path(path.gates + more.gates, passed, terms))
    return found


def _of_level(
    committee: Committee, hierarchy: Hierarchy, X: Float[np.ndarray, "n d"]
) -> list[Path] | None:
    """Return the ways through the outermost selector."""
    tree = hierarchy.selector
    if not isinstance(tree, SoftTree):
        return None
    encoding = encoding_of(committee)
    names = [feature.name for feature in encoding.features]
    mean, scale = committee.scaler_.mean_, committee.scaler_.scale_
    slope, bias = np.asarray(tree.weight, float), np.asarray(tree.bias, float)
    change, moved = centring(encoding)
    weight = slope / scale @ change.T
    threshold = slope / scale @ (mean - moved) - bias
    reach = FARTHEST_SELECTED * scale
    above = np.clip(X, mean - reach, mean + reach) @ weight.T > threshold
    sides, available = np.asarray(tree.path), np.asarray(hierarchy.available)
    found = []
    for side in sides:
        passed = [g for g in np.flatnonzero(side) if (available & (sides[:, g] == -side[g])).any()]
        gates, terms = [], []
        for g in passed:
            term = _term(encoding, X, weight[g], float(threshold[g]), bool(side[g] > 0))
            terms.append(term)
            order = [i for i in np.argsort(-np.abs(slope[g]), kind="stable") if weight[g, i]]
            told = tuple(names[i] for i in order), tuple(weight[g, order].tolist())
            short = _shorter(encoding, term).text(encoding.columns[term.column]) if term else ""
            gates.append(Gate(*told, float(threshold[g]), bool(side[g] > 0), short))
        held = [above[:, g] == (side[g] > 0) for g in passed]
        rows = np.reshape(held, (len(passed), len(X))).astype(bool)
        found.append(Path(tuple(gates), rows, _joined(encoding, terms)))
    return found


def _term(
    encoding: Encoding, X: np.ndarray, weight: np.ndarray, threshold: float, above: bool
) -> Term | None:
    """Return a gate as a comparison, if it looks at one column and is not the same for all rows."""
    used = np.flatnonzero(weight)
    columns = {encoding.features[i].column for i in used}
    if len(columns) != 1:
        return None
    (index,) = columns
    column, places = encoding.columns[index], encoding.places(index)
    if column.kind == "category":
        passing = [column.code(level) @ weight[places] > threshold for level in column.indicated]
        levels = tuple(np.asarray(column.indicated)[np.asarray(passing) == above].tolist())
        return Term(index, True, levels=levels) if 0 < len(levels) < len(passing) else None
    if len(used) > 1:  # a number, and whether it is missing
        return None
    cut, rising = threshold / weight[used[0]], bool(weight[used[0]] > 0)
    if encoding.indicators[used[0]]:
        levels = (MISSING,) if encoding.features[used[0]].level else ()
        return Term(index, above == rising, 0.5, levels) if 0.0 <= cut < 1.0 else None
    values = X[:, used[0]]
    below, beyond = values[values <= cut], values[values > cut]
    little = 1e-4 * float(np.ptp(values))
    least = below.max() if len(below) else cut - little
    most = beyond.min() if len(beyond) else cut + little
    if least < most:
        cut = shortest(least, most)
    return Term(index, above == rising, float(cut))


def _joined(encoding: Encoding, terms: Sequence[Term | None]) -> tuple[Term, ...] | None:
    """Return comparisons without those that others of the same column make superfluous."""
    known = [term for term in terms if term is not None]
    if len(known) < len(terms):
        return None
    found: dict[tuple[int, bool, bool], Term] = {}
    for term in known:
        sets = bool(term.levels) and encoding.columns[term.column].kind == "category"
        key = (term.column, term.above, bool(term.levels))
        other = found.get(key, term)
        if sets:
            both = tuple(level for level in term.levels if level in other.levels)
            found[key] = term._replace(levels=both)
        else:
            tighter = max if term.above else min
            found[key] = term._replace(cut=tighter(term.cut, other.cut))
    return tuple(_shorter(encoding, term) for term in found.values())


def _shorter(encoding: Encoding, term: Term) -> Term:
    """Return a set of categories, or the rest as what it must not be if that is shorter."""
    column = encoding.columns[term.column]
    rest = tuple(level for level in column.indicated if level not in term.levels)
    if column.kind != "category" or len(term.levels) <= len(rest):
        return term
    return Term(term.column, not term.above, levels=rest)
