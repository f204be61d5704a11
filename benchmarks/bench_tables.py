"""Committees beside what one would pick instead, on scikit-learn's bundled tables.

Held-out accuracy (R² for regression) and log-likelihood, mean over splits. Everybody uses default
settings. Peers that give no density get a Gaussian with the deviation of their cross-validated
residuals; probabilities of 0 are raised to 0.001. A linear model tree is a decision tree with a
linear model in each leaf and as many leaves as the committee has experts.
Run as `python benchmarks/bench_tables.py [iris wine …] [--splits 5]`.
"""

import argparse
import warnings
from collections.abc import Callable

import numpy as np
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_friedman1,
    make_friedman2,
)
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.model_selection import cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from tqdm import tqdm

from pinfactory import SpecialistClassifier, SpecialistRegressor

EXPERTS = 4

TABLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "digits": lambda: load_digits(return_X_y=True),
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "friedman 1": lambda: make_friedman1(1000, noise=1.0, random_state=0),
    "friedman 2": lambda: make_friedman2(1000, noise=50.0, random_state=0),
}


class LinearModelTree(BaseEstimator):
    """A decision tree with a linear model in every leaf."""

    def __init__(self, tree: BaseEstimator, model: BaseEstimator) -> None:
        self.tree, self.model = tree, model

    def __sklearn_tags__(self):
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
        for leaf, model, rows in self._leaves(X):
            del leaf
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
        for _, model, rows in self._leaves(X):
            result[rows] = model.predict(X[rows])
        return result

    def _leaves(self, X: np.ndarray):
        leaves = self.tree_.apply(X)
        for leaf in np.unique(leaves):
            yield leaf, self.models_[leaf], np.flatnonzero(leaves == leaf)


def peers(classify: bool, seed: int) -> dict[str, BaseEstimator]:
    """Return everybody who takes part."""
    committee = SpecialistClassifier if classify else SpecialistRegressor
    ours = {
        "linear committee": committee(EXPERTS, random_state=seed),
        "mlp committee": committee(16, expert="mlp", random_state=seed),
    }
    if classify:
        linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
        tree = DecisionTreeClassifier(max_leaf_nodes=EXPERTS, random_state=seed)
        forests = {
            "random forest": RandomForestClassifier(random_state=seed),
            "boosting": GradientBoostingClassifier(random_state=seed),
            "hist. boosting": HistGradientBoostingClassifier(random_state=seed),
        }
    else:
        linear = make_pipeline(StandardScaler(), RidgeCV())
        tree = DecisionTreeRegressor(max_leaf_nodes=EXPERTS, random_state=seed)
        forests = {
            "random forest": RandomForestRegressor(random_state=seed),
            "boosting": GradientBoostingRegressor(random_state=seed),
            "hist. boosting": HistGradientBoostingRegressor(random_state=seed),
        }
    return {**ours, "linear": linear, "linear tree": LinearModelTree(tree, linear), **forests}


def log_likelihood(model, X, y, X_test, y_test) -> float:
    """Return the mean held-out log-likelihood of a fitted model."""
    if hasattr(model, "score_samples"):
        return float(model.score_samples(X_test, y_test).mean())
    if hasattr(model, "predict_proba") and is_classifier(model):
        probs = np.clip(model.predict_proba(X_test), 1e-3, 1.0)
        probs /= probs.sum(axis=1, keepdims=True)
        column = np.searchsorted(model.classes_, y_test)
        return float(np.log(probs[np.arange(len(y_test)), column]).mean())
    deviation = np.std(y - cross_val_predict(clone(model), X, y, cv=3))
    error = (y_test - model.predict(X_test)) / deviation
    return float((-0.5 * error**2 - np.log(deviation * np.sqrt(2 * np.pi))).mean())


def main() -> None:
    """Print accuracy and log-likelihood of everybody."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tables", nargs="*", default=list(TABLES))
    parser.add_argument("--splits", type=int, default=5)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in asked.tables:
        X, y = TABLES[name]()
        classify = y.dtype.kind == "i" or len(np.unique(y)) < 20
        results: dict[str, list[tuple[float, float]]] = {}
        for seed in tqdm(range(asked.splits), desc=name, leave=False):
            X_fit, X_test, y_fit, y_test = train_test_split(
                X, y, test_size=0.25, random_state=seed, stratify=y if classify else None
            )
            for peer, model in peers(classify, seed).items():
                model.fit(X_fit, y_fit)
                right = np.mean(model.predict(X_test) == y_test)
                residual = np.mean((model.predict(X_test) - y_test) ** 2) / np.var(y_test)
                score = right if classify else 1.0 - residual
                likelihood = log_likelihood(model, X_fit, y_fit, X_test, y_test)
                results.setdefault(peer, []).append((float(score), likelihood))
        print(f"\n{name} ({'accuracy' if classify else 'R²'}, log-likelihood)")
        for peer, values in results.items():
            score, likelihood = np.mean(values, axis=0)
            spread = np.std(values, axis=0)
            print(
                f"  {peer:17} {score:6.3f} ± {spread[0]:.3f}  {likelihood:8.3f} ± {spread[1]:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
