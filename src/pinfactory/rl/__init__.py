"""Reinforcement learning: environments, rollouts, PPO and the agent."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .agent import SpecialistAgent
    from .callbacks import EvalCallback
    from .evaluate import EpisodeResults, Evaluation
    from .replicas import train_agents
    from .rollout import EnvironmentFault

_MODULES = {
    "EnvironmentFault": "rollout",
    "EpisodeResults": "evaluate",
    "EvalCallback": "callbacks",
    "Evaluation": "evaluate",
    "SpecialistAgent": "agent",
    "train_agents": "replicas",
}

__all__ = [
    "EnvironmentFault",
    "EpisodeResults",
    "EvalCallback",
    "Evaluation",
    "SpecialistAgent",
    "train_agents",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: environments alone need no agent."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
