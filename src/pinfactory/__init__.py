"""Learning systems that divide labour: a selector, simple experts, and a price on information."""

from pinfactory.estimators import SpecialistClassifier, SpecialistRegressor
from pinfactory.persistence import load

__all__ = ["SpecialistClassifier", "SpecialistRegressor", "load"]
