"""The paper's figures and tables, one module each, which anyone can make again.

A module has its settings, pieces of work that never draw, and a `draw` that never trains
(`Experiment`). `pinfactory reproduce` finds every module in this folder.
"""

from ._experiment import Experiment, Measure, Results
from ._registry import Listing, choose, discover
from ._runner import Outcome, run

__all__ = ["Experiment", "Listing", "Measure", "Outcome", "Results", "choose", "discover", "run"]
