"""Meta-learning: experts for families of tasks.

Section 5 of the paper: the selector sees the support set of a whole task, the chosen expert
adapts to it, and both are judged by the free energy on other samples of the task.
"""

from typing import TYPE_CHECKING, Any

from . import tasks
from ._adapted import AdaptedClassifier, AdaptedRegressor
from ._classifier import MetaSpecialistClassifier
from ._regressor import MetaSpecialistRegressor
from .adaptation import Adaptation, GradientSteps, LastLayer, Unchanged
from .embeddings import Embedding, Histogram, Pooled, SetEncoder
from .evaluation import Evaluation, evaluate
from .experts import HeadedNetwork, MetaExpert, Question, TaskSelector
from .learner import MetaLearner, MetaState
from .source import Recipes, TaskSource

if TYPE_CHECKING:
    from pinfactory.rl.meta import MetaSpecialistAgent

__all__ = [
    "Adaptation",
    "AdaptedClassifier",
    "AdaptedRegressor",
    "Embedding",
    "Evaluation",
    "GradientSteps",
    "HeadedNetwork",
    "Histogram",
    "LastLayer",
    "MetaExpert",
    "MetaLearner",
    "MetaSpecialistAgent",
    "MetaSpecialistClassifier",
    "MetaSpecialistRegressor",
    "MetaState",
    "Pooled",
    "Question",
    "Recipes",
    "SetEncoder",
    "TaskSelector",
    "TaskSource",
    "Unchanged",
    "evaluate",
    "tasks",
]


def __getattr__(name: str) -> Any:
    """Import the agent when it is asked for: data sets need no environments."""
    if name == "MetaSpecialistAgent":
        from pinfactory.rl.meta import MetaSpecialistAgent

        return MetaSpecialistAgent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
