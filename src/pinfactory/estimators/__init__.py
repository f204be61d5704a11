"""Committees with the interface of scikit-learn's estimators."""

from .classifier import SpecialistClassifier
from .curve import RateUtilityCurve, rate_utility_curve
from .mixture import SpecialistMixture
from .regressor import SpecialistRegressor

__all__ = [
    "RateUtilityCurve",
    "SpecialistClassifier",
    "SpecialistMixture",
    "SpecialistRegressor",
    "rate_utility_curve",
]
