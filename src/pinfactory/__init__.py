"""Learning systems that divide labour: a selector, simple experts, and a price on information."""

from pinfactory.estimators import SpecialistClassifier, SpecialistRegressor, rate_utility_curve
from pinfactory.persistence import load
from pinfactory.plotting import InformationDisplay, PartitionDisplay

__all__ = [
    "InformationDisplay",
    "PartitionDisplay",
    "SpecialistClassifier",
    "SpecialistRegressor",
    "load",
    "rate_utility_curve",
]
