"""Meta-reinforcement learning: the right expert for a task that is new."""

from .adapted import AdaptedAgent
from .agent import MetaSpecialistAgent
from .display import TaskPartitionDisplay
from .evaluate import MetaEvaluation
from .families import (
    Either,
    ParameterFamily,
    TaskFamily,
    Uniform,
    cart_pole_tasks,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
    pendulum_tasks,
)

__all__ = [
    "AdaptedAgent",
    "Either",
    "MetaEvaluation",
    "MetaSpecialistAgent",
    "ParameterFamily",
    "TaskFamily",
    "TaskPartitionDisplay",
    "Uniform",
    "cart_pole_tasks",
    "double_pendulum_new_tasks",
    "double_pendulum_tasks",
    "pendulum_tasks",
]
