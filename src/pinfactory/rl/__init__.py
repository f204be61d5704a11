"""Reinforcement learning: environments, rollouts, PPO and the agent."""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

if TYPE_CHECKING:
    from .agent import SpecialistAgent
    from .callbacks import EvalCallback
    from .evaluate import EpisodeResults, Evaluation
    from .replicas import train_agents
    from .rollout import EnvironmentFault

__all__ = [
    "EnvironmentFault",
    "EpisodeResults",
    "EvalCallback",
    "Evaluation",
    "SpecialistAgent",
    "train_agents",
]

# Environments alone need no agent.
__getattr__, __dir__ = attach(
    __name__,
    {
        ".agent": "SpecialistAgent",
        ".callbacks": "EvalCallback",
        ".evaluate": "EpisodeResults Evaluation",
        ".replicas": "train_agents",
        ".rollout": "EnvironmentFault",
    },
)
