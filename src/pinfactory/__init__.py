"""Learning systems that divide labour: a selector, simple experts, and a price on information."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "estimators": "SpecialistClassifier SpecialistMixture SpecialistRegressor rate_utility_curve",
    "meta": "MetaSpecialistClassifier MetaSpecialistRegressor",
    "rl": "SpecialistAgent",
    "rl.meta": "MetaSpecialistAgent",
    "core.constraints": "Scheduled",
    "core.batches": "data_parallel",
    "core.information": "Information",
    "plotting": "DensityDisplay InformationDisplay PartitionDisplay",
    "persistence": "load",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: JAX alone takes seconds."""
    if name == "__version__":
        from importlib.metadata import version

        return version("pinfactory")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return all public names, so that they complete before anything is imported."""
    return sorted({*globals(), *__all__})
