"""What one would pick instead of a committee, each as its documentation recommends, on one core."""

import time
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from typing import Any

import numpy as np
from scipy.stats import norm
from sklearn.base import clone, is_classifier
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from pinfactory.experiments.experiment import Measure, Results

from ._linear_tree import LinearModelTree
from ._public_tables import TableSplit

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


def one_line(classify: bool) -> Any:
    """Return one linear model of standardised columns."""
    linear = LogisticRegression(max_iter=5000) if classify else RidgeCV()
    return make_pipeline(StandardScaler(), linear)


def linear_tree(classify: bool, seed: int, n_leaves: int) -> LinearModelTree:
    """Return a decision tree with a linear model in every leaf."""
    tree = DecisionTreeClassifier if classify else DecisionTreeRegressor
    return LinearModelTree(tree(max_leaf_nodes=n_leaves, random_state=seed), one_line(classify))


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
