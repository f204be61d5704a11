"""Committees with the interface of scikit-learn's estimators."""

from ._classifier import SpecialistClassifier
from ._information import CommitteeInformation
from ._regressor import SpecialistRegressor

__all__ = ["CommitteeInformation", "SpecialistClassifier", "SpecialistRegressor"]
