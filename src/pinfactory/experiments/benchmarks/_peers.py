"""What one would pick instead of a committee, each as its documentation recommends, on one core."""

import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
from scipy import stats
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils.metaestimators import available_if

from pinfactory.experiments.experiment import Measure, Presets, Results

from ._public_tables import TableSplit


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


class Aplr(BaseEstimator):
    """APLR with its own tuner at its defaults, which compares by five folds; on one core.

    The tuner chooses one parameter after the other: all combinations would take three times as
    long.

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
        tuner = APLRTuner(grid | fixed, not self.classify, sequential_tuning=True)
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


# Peers that not everybody has: the module, and the package that brings it.
_PACKAGES = {
    "LightGBM": ("lightgbm", "lightgbm"),
    "EBM": ("interpret", "interpret-core"),
    "Cubist": ("cubist", "cubist"),
    "APLR": ("aplr", "aplr"),
}


def missing_peers(names: Iterable[str]) -> dict[str, str]:
    """Return those that are not installed, each with the command that installs it."""
    wanted = {name: _PACKAGES[name] for name in names if name in _PACKAGES}
    return {
        name: f"pip install {package}"
        for name, (module, package) in wanted.items()
        if find_spec(module) is None
    }


def installed(names: Iterable[str]) -> tuple[str, ...]:
    """Return those that can take part here."""
    names = tuple(names)
    return tuple(name for name in names if name not in missing_peers(names))


@dataclass(frozen=True)
class Comparison(Presets):
    """Splits, tables and methods; methods that are not installed are left out."""

    seeds: int = 5
    tables: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", installed(self.methods))  # settings are frozen


def one_line(classify: bool) -> Any:
    """Return one linear model of standardised columns."""
    linear = LogisticRegression(max_iter=5000) if classify else RidgeCV()
    return make_pipeline(StandardScaler(), linear)


def decision_tree(classify: bool, seed: int, n_leaves: int) -> Any:
    """Return a decision tree with a constant in every leaf."""
    tree = DecisionTreeClassifier if classify else DecisionTreeRegressor
    return tree(max_leaf_nodes=n_leaves, random_state=seed)


def linear_tree(classify: bool, seed: int, n_leaves: int) -> LinearModelTree:
    """Return a decision tree with a linear model in every leaf."""
    return LinearModelTree(decision_tree(classify, seed, n_leaves), one_line(classify))


def lightgbm(classify: bool, seed: int) -> Any:
    """Return LightGBM with its defaults."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if classify else LGBMRegressor
    return kind(random_state=seed, n_jobs=1, verbose=-1)


def ebm(classify: bool, seed: int) -> Any:
    """Return an explainable boosting machine with its defaults."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind = ExplainableBoostingClassifier if classify else ExplainableBoostingRegressor
    return kind(random_state=seed, n_jobs=1)


def cubist(seed: int) -> Any:
    """Return Cubist with its defaults; it has no classifier."""
    from cubist import Cubist

    return Cubist(random_state=seed)


def judge(model: Any, split: TableSplit, n_folds: int = 3) -> dict[str, float]:
    """Fit a model; return its held-out accuracy or R², log-likelihood, and processor time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of iterations and names of columns
        began = time.process_time()
        model.fit(split.X, split.y)
        seconds = time.process_time() - began
        answer = np.asarray(model.predict(split.X_test)).astype(float)
        likelihood = held_out_likelihood(model, *split[:4], n_folds)
    score = (accuracy_score if split.classify else r2_score)(split.y_test, answer)
    return {"score": float(score), "log-likelihood": likelihood, "seconds": seconds}


def held_out_likelihood(
    model: Any,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
    n_folds: int = 3,
) -> float:
    """Return the mean held-out log-likelihood of a fitted model.

    The deviation of one without a density is that of its residuals in so many folds of three.
    """
    if hasattr(model, "score_samples"):
        return float(model.score_samples(X_test, y_test).mean())
    if hasattr(model, "predict_proba") and is_classifier(model):
        probs = np.clip(model.predict_proba(X_test), 1e-3, 1.0)
        probs /= probs.sum(axis=1, keepdims=True)
        column = np.searchsorted(model.classes_, y_test)
        return float(np.log(probs[np.arange(len(y_test)), column]).mean())
    folds = islice(KFold(3).split(X), n_folds)
    residuals = [y[rows] - clone(model).fit(X[own], y[own]).predict(X[rows]) for own, rows in folds]
    deviation = np.std(np.concatenate(residuals))
    return float(norm.logpdf(y_test, model.predict(X_test), deviation).mean())


def by_table(results: Results, quantity: str) -> dict[str, dict[str, list[float]]]:
    """Return the values of all splits by table and method."""
    found: dict[str, dict[str, list[float]]] = {}
    for piece in results.values():
        if quantity in piece:
            methods = found.setdefault(piece["table"], {})
            methods.setdefault(piece["method"], []).append(float(piece[quantity]))
    return found


def mean_leads(results: Results, quantity: str, mine: str, other: str) -> np.ndarray:
    """Return by how much one method exceeds another on each table, in the mean of the splits."""
    both = [m for m in by_table(results, quantity).values() if mine in m and other in m]
    return np.array([np.mean(m[mine]) - np.mean(m[other]) for m in both])


def over_splits(results: Results, quantities: Iterable[str], *keys: str) -> list[Measure]:
    """Return the quantities of all pieces, over those that are alike in `keys`."""
    rows = []
    for quantity in quantities:
        values: dict[str, list[float]] = {}
        for piece in results.values():
            if quantity in piece:
                name = ", ".join([quantity, *(piece[key] for key in keys)])
                values.setdefault(name, []).append(float(piece[quantity]))
        unit = "s" if quantity == "seconds" else ""
        rows += [Measure.over(name, found, unit=unit) for name, found in values.items()]
    return rows
