"""The comparison of `real_tables` on tables that no default was chosen on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from . import real_tables
from ._peers import Comparison, missing_peers
from ._public_tables import OTHERS
from .real_tables import REQUIRES, draw, measures
from .real_tables import comparisons as pieces

TITLE = "Committees on other public tables"
ABOUT = """
The comparison of `real_tables` on tables that were not used to choose the defaults of committees.
The tables were picked from the same packages by name and size before anything was fitted to them,
and none was removed afterwards, except `Hedonic`, which has the same data as `Boston`. One rule,
how far outside the data experts are used, was changed after a look at `diamonds`. The agreement of
seeds is not measured again.
"""
METHODS = tuple(name for name in real_tables.METHODS if name != "16 mlp experts")


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return missing_peers(METHODS)


@dataclass(frozen=True)
class Settings(Comparison):
    """Other tables, and all methods but the slowest."""

    tables: tuple[str, ...] = tuple(OTHERS)
    methods: tuple[str, ...] = METHODS

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "tables": ("Boston", "Mroz", "spam7")}


__all__ = ["REQUIRES", "Settings", "draw", "measures", "pieces", "skipped"]
