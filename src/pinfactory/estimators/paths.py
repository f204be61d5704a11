"""The exact way to a leaf of a selector that is a tree, in the user's columns and units."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from pinfactory.core.hierarchy import Hierarchy, pick
from pinfactory.networks import FARTHEST_SELECTED, SoftTree
from pinfactory.tables import Gate

from .committee import Committee
from .explain import centring, encoding_of


class Path(NamedTuple):
    """The gates on the way to an expert, and for which rows each is passed on its side."""

    gates: tuple[Gate, ...]
    passed: Bool[np.ndarray, "gates n"]

    def holds(self) -> Bool[np.ndarray, " n"]:
        """Return which rows pass all of them."""
        return np.all(self.passed, axis=0)


def find_paths(committee: Committee, X: Float[np.ndarray, "n d"]) -> list[Path] | None:
    """Return the way to every expert, and which rows take it; None if the selector is no tree.

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
    found = []
    for m, (gates, passed) in enumerate(own):
        below = _through(committee, pick(hierarchy.experts, m), X)
        if below is None:
            return None
        found += [Path(gates + more.gates, np.concatenate([passed, more.passed])) for more in below]
    return found


def _of_level(
    committee: Committee, hierarchy: Hierarchy, X: Float[np.ndarray, "n d"]
) -> list[Path] | None:
    """Return the ways through the outermost selector."""
    tree = hierarchy.selector
    if not isinstance(tree, SoftTree):
        return None
    names = [feature.name for feature in encoding_of(committee).features]
    mean, scale = committee.scaler_.mean_, committee.scaler_.scale_
    slope, bias = np.asarray(tree.weight, float), np.asarray(tree.bias, float)
    change, moved = centring(encoding_of(committee))
    weight = slope / scale @ change.T
    threshold = slope / scale @ (mean - moved) - bias
    reach = FARTHEST_SELECTED * scale
    above = np.clip(X, mean - reach, mean + reach) @ weight.T > threshold
    sides, available = np.asarray(tree.path), np.asarray(hierarchy.available)
    found = []
    for side in sides:
        passed = [g for g in np.flatnonzero(side) if (available & (sides[:, g] == -side[g])).any()]
        gates = []
        for g in passed:
            order = [i for i in np.argsort(-np.abs(slope[g]), kind="stable") if weight[g, i]]
            told = tuple(names[i] for i in order), tuple(weight[g, order].tolist())
            gates.append(Gate(*told, float(threshold[g]), bool(side[g] > 0)))
        held = [above[:, g] == (side[g] > 0) for g in passed]
        found.append(Path(tuple(gates), np.reshape(held, (len(passed), len(X))).astype(bool)))
    return found
