"""Results for readers: one page that shows all experiments of a folder, and tables for the docs."""

from pinfactory.formats import duration, number

from ._page import write_page
from ._tables import Cells, find_measure, format_measure, table

__all__ = [
    "Cells",
    "duration",
    "find_measure",
    "format_measure",
    "number",
    "table",
    "write_page",
]
