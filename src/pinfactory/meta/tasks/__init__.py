"""Distributions of tasks: sine curves, Omniglot, and your own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Import Omniglot when it is asked for: it alone reads archives."""
    if name == "Omniglot":
        return import_module("pinfactory.meta.tasks._omniglot").Omniglot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
