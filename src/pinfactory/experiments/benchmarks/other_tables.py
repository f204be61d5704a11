"""The comparison of `real_tables` on tables that no default was chosen on."""

from dataclasses import dataclass
from typing import Any

from . import real_tables
from ._peers import installed
from ._public_tables import OTHERS
from .real_tables import REQUIRES, draw, measures
from .real_tables import comparisons as pieces

TITLE = "Committees on tables that nothing was chosen on"
ABOUT = """
The same as on the tables on which the defaults of committees were chosen, and in the same way, on
others. They were picked from the same packages by their names and sizes before anything was fitted
to them, and no table was taken out again (but `Hedonic`, which is `Boston` once more). How steady
committees are is not asked again.
"""
METHODS = tuple(name for name in real_tables.METHODS if name != "16 mlp experts")


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return real_tables.missing_peers(METHODS)


@dataclass(frozen=True)
class Settings(real_tables.Settings):
    """Splits, tables and methods."""

    tables: tuple[str, ...] = tuple(OTHERS)
    methods: tuple[str, ...] = METHODS

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return one split of a few tables."""
        tables = ("Boston", "Mroz", "spam7")
        chosen: dict[str, Any] = {"seeds": 1, "tables": tables, "methods": installed(METHODS)}
        return cls(**chosen | changes)

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """Return five splits of all tables."""
        return cls(**{"methods": installed(METHODS)} | changes)


__all__ = ["REQUIRES", "Settings", "draw", "measures", "pieces", "skipped"]
