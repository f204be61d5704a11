"""Meta-reinforcement learning: the right expert for a body never met before."""

from ._adapted import AdaptedAgent
from ._agent import MetaSpecialistAgent
from ._display import TaskPartitionDisplay
from ._evaluation import MetaEvaluation
from ._families import (
    Either,
    ParameterFamily,
    TaskFamily,
    Uniform,
    cart_pole_tasks,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
    pendulum_tasks,
)
from ._information import MetaInformation

__all__ = [
    "AdaptedAgent",
    "Either",
    "MetaEvaluation",
    "MetaInformation",
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
