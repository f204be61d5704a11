"""Distributions of tasks: sine curves, Omniglot, and your own."""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

from ._arrays import ArrayTasks, GroupedTasks
from ._protocol import Episode, Samples, Tasks, as_episode, draw_recipes, task_subjects
from ._sinusoids import SinusoidRecipe, Sinusoids

if TYPE_CHECKING:
    from ._omniglot import Omniglot

__all__ = [
    "ArrayTasks",
    "Episode",
    "GroupedTasks",
    "Omniglot",
    "Samples",
    "SinusoidRecipe",
    "Sinusoids",
    "Tasks",
    "as_episode",
    "draw_recipes",
    "task_subjects",
]

# Omniglot alone reads archives.
__getattr__, __dir__ = attach(__name__, {"._omniglot": "Omniglot"})
