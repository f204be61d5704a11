"""Plain mixtures of linear experts beside which a committee has to show what its prices bring.

All are p(y|x) = Σₘ p(m|x) p(y|x, m), learned in one way or another.
"""

from abc import ABC, abstractmethod

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler

LEAST_DEVIATION = 0.01  # of standardised targets: an expert must not win by a spike


class ControlMixture(ABC, BaseEstimator):
    """A mixture of linear experts; columns and numeric targets are standardised.

    Parameters
    ----------
    n_experts
        How many experts there are.
    classify
        Whether targets are classes.
    seed
        Of the start.
    """

    def __init__(self, n_experts: int, classify: bool, seed: int) -> None:
        self.n_experts, self.classify, self.seed = n_experts, classify, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> "ControlMixture":
        """Learn gates and experts."""
        self.inputs_ = StandardScaler().fit(X)
        target: np.ndarray
        if self.classify:
            self.classes_, target = np.unique(y, return_inverse=True)
        else:
            self.mean_, self.scale_ = float(np.mean(y)), float(np.std(y))
            target = (y - self.mean_) / self.scale_
        self._learn(self._columns(X), target)
        share = np.exp(self._log_gates(self._columns(X))).mean(axis=0)
        self.effective_experts_ = float(np.exp(-np.sum(share * np.log(share + 1e-12))))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most probable class, or the mean."""
        if self.classify:
            return self.classes_[self.predict_proba(X).argmax(axis=1)]
        x = self._columns(X)
        answers, _ = self._answers(x)
        return self.mean_ + self.scale_ * np.sum(np.exp(self._log_gates(x)) * answers, axis=1)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes."""
        x = self._columns(X)
        log_probs, _ = self._answers(x)
        return np.exp(logsumexp(self._log_gates(x)[:, :, None] + log_probs, axis=1))

    def score_samples(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return log p(y|x) of every row."""
        x = self._columns(X)
        target = (
            np.searchsorted(self.classes_, y) if self.classify else (y - self.mean_) / self.scale_
        )
        scores = logsumexp(self._log_gates(x) + self._log_densities(x, target), axis=1)
        return scores if self.classify else scores - np.log(self.scale_)

    def _log_densities(self, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return log p(y|x, m) for every row and expert."""
        answers, deviations = self._answers(x)
        if self.classify:
            return np.take_along_axis(answers, target[:, None, None], axis=2)[:, :, 0]
        return norm.logpdf(target[:, None], answers, deviations)

    def _columns(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([self.inputs_.transform(X), np.ones((len(X), 1))])

    @abstractmethod
    def _learn(self, x: np.ndarray, target: np.ndarray) -> None:
        """Learn from standardised columns."""

    @abstractmethod
    def _log_gates(self, x: np.ndarray) -> np.ndarray:
        """Return log p(m|x)."""

    @abstractmethod
    def _answers(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities, or means, for every row and expert; and deviations."""
