"""The paper's figures and tables, and benchmarks, one module each, which anyone can run again.

A module has its settings, pieces of work that never draw, and measures (`Experiment`).
`pinfactory reproduce` finds every module in this folder and in `benchmarks`.
"""

from ._machine import commit, processor
from ._registry import Listing, choose, discover
from ._results import (
    Change,
    accept_result,
    command_of,
    compare,
    read_accepted,
    read_checked,
    read_result,
)
from ._runner import Outcome, run
from .experiment import Experiment, Kind, Measure, Results
from .methods import Method, has_methods

__all__ = [
    "Change",
    "Experiment",
    "Kind",
    "Listing",
    "Measure",
    "Method",
    "Outcome",
    "Results",
    "accept_result",
    "choose",
    "command_of",
    "commit",
    "compare",
    "discover",
    "has_methods",
    "processor",
    "read_accepted",
    "read_checked",
    "read_result",
    "run",
]
