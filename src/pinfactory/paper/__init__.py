"""The paper's exact settings, with our own changes turned off.

Each function returns one of the library's learners, with all that this library does otherwise
turned off. `docs/paper.md` lists every number of the paper's appendix and the reading that was
chosen where it is silent or contradicts itself.
"""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

if TYPE_CHECKING:
    from .agents import agent, meta_agent
    from .baselines import maml, matching_networks
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
    "maml",
    "matching_networks",
    "meta_agent",
    "mixture",
    "regressor",
    "sinusoids",
]

__getattr__, __dir__ = attach(
    __name__,
    {
        ".agents": "agent meta_agent",
        ".baselines": "maml matching_networks",
        ".committees": "classifier regressor",
        ".density": "GradientMixture mixture",
        ".tasks": "TaskClassifier TaskRegressor few_shot sinusoids",
    },
)
