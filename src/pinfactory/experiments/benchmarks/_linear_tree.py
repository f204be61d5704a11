"""A decision tree with a linear model in every leaf."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier


class LinearModelTree(BaseEstimator):
    """A decision tree with a linear model in every leaf.

    Parameters
    ----------
    tree
        The tree that makes the leaves.
    model
        The model that each leaf fits to its rows.
    """

    def __init__(self, tree: BaseEstimator, model: BaseEstimator) -> None:
        self.tree, self.model = tree, model

    def __sklearn_tags__(self) -> Any:
        return self.model.__sklearn_tags__()

    def fit(self, X: np.ndarray, y: np.ndarray) -> "LinearModelTree":
        """Grow the tree, then fit the leaves."""
        self.tree_ = clone(self.tree).fit(X, y)
        self.classes_ = np.unique(y)
        leaves, self.models_ = self.tree_.apply(X), {}
        for leaf in np.unique(leaves):
            rows = leaves == leaf
            mixed = not is_classifier(self.model) or len(np.unique(y[rows])) > 1
            self.models_[leaf] = clone(self.model).fit(X[rows], y[rows]) if mixed else y[rows][0]
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return probabilities in the order of all classes."""
        result = np.zeros((len(X), len(self.classes_)))
        for model, rows in self._leaves(X):
            if isinstance(model, BaseEstimator):
                columns = np.searchsorted(self.classes_, model.classes_)
                result[np.ix_(rows, columns)] = model.predict_proba(X[rows])
            else:
                result[rows, np.searchsorted(self.classes_, model)] = 1.0
        return result

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return classes or values."""
        if is_classifier(self.model):
            return self.classes_[self.predict_proba(X).argmax(axis=1)]
        result = np.zeros(len(X))
        for model, rows in self._leaves(X):
            result[rows] = model.predict(X[rows])
        return result

    def _leaves(self, X: np.ndarray) -> Iterator[tuple[Any, np.ndarray]]:
        leaves = self.tree_.apply(X)
        for leaf in np.unique(leaves):
            yield self.models_[leaf], np.flatnonzero(leaves == leaf)
