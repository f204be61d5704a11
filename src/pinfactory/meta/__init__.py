"""Meta-learning: experts for families of tasks.

Section 5 of the paper: the selector sees the support set of a whole task, the chosen expert
adapts to it, and both are trained on the free energy of other samples of the task.
"""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

from . import tasks
from .adaptation import Adaptation, GradientSteps, LastLayer, Unchanged
from .adapted import AdaptedClassifier, AdaptedRegressor
from .classifier import MetaSpecialistClassifier
from .evaluation import TaskScores, evaluate
from .experts import (
    Embedding,
    HeadedNetwork,
    Histogram,
    MetaExpert,
    NearestCentre,
    Pooled,
    SetEncoder,
    TaskInput,
    TaskSelector,
)
from .loss import TaskLoss
from .regressor import MetaSpecialistRegressor
from .shared import FeatureExpert, KernelSteps, SharedHierarchy
from .source import TaskBatches, TaskSource

if TYPE_CHECKING:
    from pinfactory.rl.meta import MetaSpecialistAgent

__all__ = [
    "Adaptation",
    "AdaptedClassifier",
    "AdaptedRegressor",
    "Embedding",
    "FeatureExpert",
    "GradientSteps",
    "HeadedNetwork",
    "Histogram",
    "KernelSteps",
    "LastLayer",
    "MetaExpert",
    "MetaSpecialistAgent",
    "MetaSpecialistClassifier",
    "MetaSpecialistRegressor",
    "NearestCentre",
    "Pooled",
    "SetEncoder",
    "SharedHierarchy",
    "TaskBatches",
    "TaskInput",
    "TaskLoss",
    "TaskScores",
    "TaskSelector",
    "TaskSource",
    "Unchanged",
    "evaluate",
    "tasks",
]

# Data sets need no environments.
__getattr__, __dir__ = attach(__name__, {"pinfactory.rl.meta": "MetaSpecialistAgent"})
