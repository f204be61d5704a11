"""Learning systems that divide labour: a selector, simple experts, and a price on information."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinfactory.estimators import (
        SpecialistClassifier,
        SpecialistMixture,
        SpecialistRegressor,
        rate_utility_curve,
    )
    from pinfactory.persistence import load
    from pinfactory.plotting import DensityDisplay, InformationDisplay, PartitionDisplay

__all__ = [
    "DensityDisplay",
    "InformationDisplay",
    "PartitionDisplay",
    "SpecialistClassifier",
    "SpecialistMixture",
    "SpecialistRegressor",
    "load",
    "rate_utility_curve",
]

_HOMES = {
    "load": "persistence",
    "DensityDisplay": "plotting",
    "InformationDisplay": "plotting",
    "PartitionDisplay": "plotting",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for: JAX alone takes seconds."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Models register their kind of file when they are imported, and `load` has to know them.
    estimators = import_module("pinfactory.estimators")
    home = import_module(f"pinfactory.{_HOMES[name]}") if name in _HOMES else estimators
    return getattr(home, name)
