"""Results for readers: one page that shows all experiments of a folder, and tables for the docs."""

from pinfactory.formats import duration, number

from ._page import write_page
from ._tables import Cells, find_measure, format_measure, table
from .model_page import write_model_page
from .peers import BOOSTING, COMMITTEE, EBM, LINEAR, PEERS, Judgement, judge, judge_peer, peers

__all__ = [
    "BOOSTING",
    "COMMITTEE",
    "EBM",
    "LINEAR",
    "PEERS",
    "Cells",
    "Judgement",
    "duration",
    "find_measure",
    "format_measure",
    "judge",
    "judge_peer",
    "number",
    "peers",
    "table",
    "write_model_page",
    "write_page",
]
