"""The paper's Omniglot tasks for others' methods that take long."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pinfactory.experiments.figures import omniglot_table
from pinfactory.experiments.figures.omniglot_table import (
    BASELINES,
    FOUR_BLOCKS,
    measures,
    pieces,
)
from pinfactory.experiments.figures.omniglot_table import lacks as lacks

TITLE = "Omniglot with other methods"
ABOUT = """
The one-shot tasks of the figure `omniglot_table`, learned by all baselines with one convolutional
block of 32 filters, and by MAML, Matching Networks and Prototypical Networks with four strided
blocks, as published. Methods that adapt a whole network by gradient steps, or have four blocks,
take many times as long as those of the figure.
"""


@dataclass(frozen=True)
class Settings(omniglot_table.Settings):
    """As in the table, without committees."""

    shots: tuple[int, ...] = (1,)
    rotations: tuple[str, ...] = ("classes",)
    n_experts: tuple[int, ...] = ()
    controls: tuple[str, ...] = ()
    baselines: tuple[str, ...] = (*BASELINES, *FOUR_BLOCKS)

    # Without MAML through four blocks, which takes half a second for a step.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "baselines": (*BASELINES, "Matching Nets, four blocks", "ProtoNets, four blocks"),
        "baseline_iter": 200,
    }


__all__ = ["Settings", "lacks", "measures", "pieces"]
