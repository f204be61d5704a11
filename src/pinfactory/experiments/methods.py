"""Our method and the paper's to the letter, side by side in one experiment.

An experiment that can run both has a setting `method`. The pieces of the paper's method have names
of their own, so that its numbers stand beside ours wherever both were computed.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import wraps
from typing import Any, Literal

from .experiment import Measure, Results

Method = Literal["ours", "paper", "both"]
Measures = Callable[[Results], list[Measure]]

# What the names of pieces and measures of the paper's method end in.
LITERAL = ", the paper's method"


def has_methods(experiment: Any) -> bool:
    """Return whether an experiment can also run the paper's method."""
    return "method" in (field.name for field in fields(experiment.Settings))


def choose_pieces(
    method: Method,
    ours: Mapping[str, Callable[[], Any]],
    literal: Mapping[str, Callable[[], Any]],
) -> dict[str, Callable[[], Any]]:
    """Return the pieces of the methods that are asked for."""
    named = {f"{name}{LITERAL}": piece for name, piece in literal.items()}
    return (dict(ours) if method != "paper" else {}) | (named if method != "ours" else {})


def by_method(results: Results) -> dict[str, dict[str, Any]]:
    """Return results of ours ("") and of the paper's method (`LITERAL`), those that there are."""
    found: dict[str, dict[str, Any]] = {}
    for name, piece in results.items():
        suffix = LITERAL if name.endswith(LITERAL) else ""
        found.setdefault(suffix, {})[name.removesuffix(suffix)] = piece
    return found


def split_further(results: Results) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pieces that a figure shows, and those that only have a `quantity` to report."""
    further = {name: piece for name, piece in results.items() if "quantity" in piece}
    return {name: piece for name, piece in results.items() if name not in further}, further


def compare_methods(measures: Measures) -> Measures:
    """Make the measures of one method those of both.

    Ours stand beside the paper's method; that method's own follow, with their spread.
    """

    @wraps(measures)
    def compared(results: Results) -> list[Measure]:
        found = by_method(results)
        literal = measures(found[LITERAL]) if LITERAL in found else []
        means = {row.name: row.ours for row in literal}
        ours = measures(found[""]) if "" in found else []
        return [replace(row, paper_method=means.get(row.name)) for row in ours] + [
            replace(row, name=f"{row.name}{LITERAL}", target=None) for row in literal
        ]

    return compared
