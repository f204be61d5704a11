"""Reinforcement learning: environments, rollouts, advantages and the agent."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._agent import SpecialistAgent
    from ._errors import EnvironmentFault
    from ._information import AgentInformation
    from ._many import train_agents
    from ._play import Episodes
    from ._watching import Evaluation

_HOMES = {
    "AgentInformation": "_information",
    "EnvironmentFault": "_errors",
    "Episodes": "_play",
    "Evaluation": "_watching",
    "SpecialistAgent": "_agent",
    "train_agents": "_many",
}

__all__ = [
    "AgentInformation",
    "EnvironmentFault",
    "Episodes",
    "Evaluation",
    "SpecialistAgent",
    "train_agents",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: environments alone need no agent."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
