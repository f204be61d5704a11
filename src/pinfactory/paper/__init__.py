"""The paper's exact settings, with our own changes turned off.

Each function returns one of the library's learners, with all that this library does otherwise
turned off. `docs/paper.md` lists every number of the paper's appendix and the reading that was
chosen where it is silent or contradicts itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agents import agent, meta_agent
    from .committees import classifier, regressor
    from .density import GradientMixture, mixture
    from .tasks import TaskClassifier, TaskRegressor, few_shot, sinusoids

__all__ = [
    "GradientMixture",
    "TaskClassifier",
    "TaskRegressor",
    "agent",
    "classifier",
    "few_shot",
    "meta_agent",
    "mixture",
    "regressor",
    "sinusoids",
]

_MODULES = {
    "agents": "agent meta_agent",
    "committees": "classifier regressor",
    "density": "GradientMixture mixture",
    "tasks": "TaskClassifier TaskRegressor few_shot sinusoids",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return all public names, so that they complete before anything is imported."""
    return sorted({*globals(), *__all__})
