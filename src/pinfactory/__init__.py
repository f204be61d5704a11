"""Learning systems that divide labour: a selector, simple experts, and a price on information."""

from typing import TYPE_CHECKING, Any

from .lazy import attach

if TYPE_CHECKING:
    from pinfactory.core.batches import data_parallel
    from pinfactory.core.constraints import Scheduled
    from pinfactory.core.information import Information
    from pinfactory.estimators import (
        SpecialistClassifier,
        SpecialistMixture,
        SpecialistRegressor,
        rate_utility_curve,
    )
    from pinfactory.meta import MetaSpecialistClassifier, MetaSpecialistRegressor
    from pinfactory.persistence import load
    from pinfactory.plotting import DensityDisplay, InformationDisplay, PartitionDisplay
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.meta import MetaSpecialistAgent

    __version__: str

__all__ = [
    "DensityDisplay",
    "Information",
    "InformationDisplay",
    "MetaSpecialistAgent",
    "MetaSpecialistClassifier",
    "MetaSpecialistRegressor",
    "PartitionDisplay",
    "Scheduled",
    "SpecialistAgent",
    "SpecialistClassifier",
    "SpecialistMixture",
    "SpecialistRegressor",
    "__version__",
    "data_parallel",
    "load",
    "rate_utility_curve",
]

# JAX alone takes seconds to import.
_find, __dir__ = attach(
    __name__,
    {
        ".estimators": "SpecialistClassifier SpecialistMixture SpecialistRegressor "
        "rate_utility_curve",
        ".meta": "MetaSpecialistClassifier MetaSpecialistRegressor",
        ".rl": "SpecialistAgent",
        ".rl.meta": "MetaSpecialistAgent",
        ".core.constraints": "Scheduled",
        ".core.batches": "data_parallel",
        ".core.information": "Information",
        ".plotting": "DensityDisplay InformationDisplay PartitionDisplay",
        ".persistence": "load",
    },
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pinfactory")
    return _find(name)
