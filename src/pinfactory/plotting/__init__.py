"""Pictures of committees and mixtures, in the manner of scikit-learn's Display objects.

Matplotlib is imported only when something is drawn.
"""

from ._curve import draw_curve
from ._density import DensityDisplay
from ._information import InformationDisplay
from ._partition import PartitionDisplay
from .style import expert_colours

__all__ = [
    "DensityDisplay",
    "InformationDisplay",
    "PartitionDisplay",
    "draw_curve",
    "expert_colours",
]
