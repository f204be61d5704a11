"""Committees beside what one would pick instead, on scikit-learn's bundled tables."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.base import clone, is_classifier
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

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Results

from ._charts import draw_measures
from ._linear_tree import LinearModelTree

TITLE = "Committees beside their peers on small tables"
ABOUT = """
Held-out accuracy (R² for regression) and log-likelihood, mean over splits with a quarter of the
rows held out. Everybody uses default settings. Peers that give no density get a Gaussian with the
deviation of their cross-validated residuals; probabilities of 0 are raised to 0.001. A linear
model tree is a decision tree with a linear model in each leaf and as many leaves as the committee
has experts.
"""

_EXPERTS = 4
TABLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "iris": partial(load_iris, return_X_y=True),
    "wine": partial(load_wine, return_X_y=True),
    "breast cancer": partial(load_breast_cancer, return_X_y=True),
    "digits": partial(load_digits, return_X_y=True),
    "diabetes": partial(load_diabetes, return_X_y=True),
    "friedman 1": partial(make_friedman1, 1000, noise=1.0, random_state=0),
    "friedman 2": partial(make_friedman2, 1000, noise=50.0, random_state=0),
}
# Peers that not everybody has: the module, and the package that brings it.
_OTHERS = {
    "LightGBM": ("lightgbm", "lightgbm"),
    "EBM": ("interpret", "interpret-core"),
    "Cubist": ("cubist", "cubist"),
}


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return {
        name: f"pip install {package}"
        for name, (module, package) in _OTHERS.items()
        if find_spec(module) is None
    }


@dataclass(frozen=True)
class Settings:
    """Tables and splits; peers are those that are installed."""

    seeds: int = 5
    tables: tuple[str, ...] = tuple(TABLES)
    without: tuple[str, ...] = ()

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return two splits."""
        chosen: dict[str, Any] = {"seeds": 2, "without": tuple(skipped())}
        return cls(**chosen | changes)

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """Return five splits."""
        return cls(**{"without": tuple(skipped())} | changes)


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table and split, in which all take their turn."""
    return {
        f"{table}, split {seed}": partial(_compare, settings, table, seed)
        for table in settings.tables
        for seed in range(settings.seeds)
    }


def _compare(settings: Settings, table: str, seed: int) -> dict[str, Any]:
    X, y = TABLES[table]()
    classify = len(np.unique(y)) < 20
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.25, random_state=seed, stratify=y if classify else None
    )
    found = {}
    for name, make in _peers(classify, seed).items():
        if name in settings.without:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn of iterations and names of columns
            model = make().fit(X, y)
            answer = model.predict(X_test)
            likelihood = held_out_likelihood(model, X, y, X_test, y_test)
        right = np.mean(answer == y_test)
        explained = 1.0 - np.mean((answer - y_test) ** 2) / np.var(y_test)
        found[name] = {"score": right if classify else explained, "log-likelihood": likelihood}
    return {"table": table, "classify": classify, "peers": found}


def _peers(classify: bool, seed: int) -> dict[str, Callable[[], Any]]:
    """Return everybody who may take part."""
    ours = SpecialistClassifier if classify else SpecialistRegressor
    linear = make_pipeline(
        StandardScaler(), LogisticRegression(max_iter=5000) if classify else RidgeCV()
    )
    tree = (DecisionTreeClassifier if classify else DecisionTreeRegressor)(
        max_leaf_nodes=_EXPERTS, random_state=seed
    )
    forest = RandomForestClassifier if classify else RandomForestRegressor
    boosting = GradientBoostingClassifier if classify else GradientBoostingRegressor
    histograms = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    found: dict[str, Callable[[], Any]] = {
        "linear committee": partial(ours, _EXPERTS, random_state=seed),
        "mlp committee": partial(ours, 16, expert="mlp", random_state=seed),
        "linear": lambda: linear,
        "linear tree": lambda: LinearModelTree(tree, linear),
        "random forest": partial(forest, random_state=seed),
        "boosting": partial(boosting, random_state=seed),
        "hist. boosting": partial(histograms, random_state=seed),
        "LightGBM": partial(lightgbm_peer, classify, seed),
        "EBM": partial(ebm_peer, classify, seed),
    }
    return found if classify else found | {"Cubist": partial(cubist_peer, seed)}


def lightgbm_peer(classify: bool, seed: int) -> Any:
    """Return LightGBM with its defaults, on one core."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMClassifier if classify else LGBMRegressor
    return kind(random_state=seed, n_jobs=1, verbose=-1)


def ebm_peer(classify: bool, seed: int) -> Any:
    """Return an explainable boosting machine with its defaults, on one core."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind = ExplainableBoostingClassifier if classify else ExplainableBoostingRegressor
    return kind(random_state=seed, n_jobs=1)


def cubist_peer(seed: int) -> Any:
    """Return Cubist with its defaults."""
    from cubist import Cubist

    return Cubist(random_state=seed)


def held_out_likelihood(
    model: Any, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray
) -> float:
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


def measures(results: Results) -> list[Measure]:
    """Return scores and log-likelihoods of all on all tables, over splits."""
    rows = []
    tables = dict.fromkeys(piece["table"] for piece in results.values())
    for quantity in ("score", "log-likelihood"):
        for table in tables:
            mine = [piece["peers"] for piece in results.values() if piece["table"] == table]
            for peer in mine[0]:
                values = [peers[peer][quantity] for peers in mine]
                rows.append(Measure.over(f"{quantity}, {table}, {peer}", values))
    return rows


def draw(results: Results) -> Figure:
    """Draw the scores."""
    return draw_measures([m for m in measures(results) if m.name.startswith("score")])
