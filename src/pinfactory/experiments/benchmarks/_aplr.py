"""Automatic piecewise linear regression behind scikit-learn's interface."""

from typing import Any

import numpy as np
from scipy import stats
from sklearn.base import BaseEstimator
from sklearn.utils.metaestimators import available_if


class Aplr(BaseEstimator):
    """APLR with its own tuner at its defaults, which compares by five folds; on one core.

    Parameters
    ----------
    classify
        Whether targets are classes.
    seed
        Of its folds.
    grid
        What the tuner compares; its own grid by default.
    """

    def __init__(self, classify: bool, seed: int, grid: dict[str, list[Any]] | None = None) -> None:
        self.classify, self.seed, self.grid = classify, seed, grid

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier" if self.classify else "regressor"
        return tags

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Aplr":
        """Fit to numbers; classes are told as strings."""
        from aplr import APLRTuner

        grid = self.grid or APLRTuner().parameters
        fixed = {"random_state": [self.seed], "n_jobs": [1]}
        tuner = APLRTuner(grid | fixed, is_regressor=not self.classify)
        if self.classify:
            self.classes_, y = np.unique(y, return_inverse=True)
        tuner.fit(X, [str(number) for number in y] if self.classify else y)
        self.model_ = tuner.get_best_estimator()
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return classes or numbers."""
        if self.classify:
            return self.classes_[self.predict_proba(X).argmax(axis=1)]
        return np.asarray(self.model_.predict(X))

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities in the order of all classes."""
        order = np.argsort([int(name) for name in self.model_.get_categories()])
        return np.asarray(self.model_.predict_class_probabilities(X))[:, order]

    @available_if(lambda self: not self.classify)
    def score_samples(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return log-densities, with the deviation of the residuals of its own five folds."""
        deviation = np.sqrt(self.model_.get_cv_error())
        return stats.norm.logpdf(y, self.predict(X), deviation)

    @property
    def terms_(self) -> list[str]:
        """Return the names of all terms, those of every class, without the intercepts."""
        if not self.classify:
            return self.model_.get_term_names()[1:]
        names = self.model_.get_categories()
        # One model is enough to tell two classes apart.
        models = [
            self.model_.get_logit_model(name) for name in names[: len(names) - (len(names) == 2)]
        ]
        return [term for model in models for term in model.get_term_names()[1:]]
