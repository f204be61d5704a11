"""Committees with the interface of scikit-learn's estimators."""

from ._classifier import SpecialistClassifier
from ._curve import RateUtilityCurve, rate_utility_curve
from ._information import CommitteeInformation, MixtureInformation
from ._mixture import SpecialistMixture
from ._regressor import SpecialistRegressor

__all__ = [
    "CommitteeInformation",
    "MixtureInformation",
    "RateUtilityCurve",
    "SpecialistClassifier",
    "SpecialistMixture",
    "SpecialistRegressor",
    "rate_utility_curve",
]
