"""Committees beside what one would pick instead, on scikit-learn's bundled tables."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure
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
from sklearn.model_selection import train_test_split

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Results

from ._charts import draw_measures
from ._peers import (
    cubist,
    ebm,
    held_out_likelihood,
    lightgbm,
    linear_tree,
    missing_peers,
    one_line,
)

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


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return missing_peers(("LightGBM", "EBM", "Cubist"))


@dataclass(frozen=True)
class Settings:
    """Tables and splits; peers are those that are installed."""

    seeds: int = 5
    tables: tuple[str, ...] = tuple(TABLES)
    without: tuple[str, ...] = ()

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return two splits of two tables; EBM takes minutes on the digits."""
        chosen: dict[str, Any] = {"seeds": 2, "tables": ("iris", "diabetes")}
        chosen["without"] = tuple(skipped())
        return cls(**chosen | changes)

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """Return five splits."""
        return cls(**{"without": tuple(skipped())} | changes)


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table and split, in which all take their turn."""
    return {
        f"{table}, split {seed}": partial(_compare, table, seed, settings.without)
        for table in settings.tables
        for seed in range(settings.seeds)
    }


def _compare(table: str, seed: int, without: Sequence[str]) -> dict[str, Any]:
    X, y = TABLES[table]()
    classify = len(np.unique(y)) < 20
    X, X_test, y, y_test = train_test_split(
        X, y, test_size=0.25, random_state=seed, stratify=y if classify else None
    )
    found = {}
    for name, make in _peers(classify, seed).items():
        if name in without:
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
    forest = RandomForestClassifier if classify else RandomForestRegressor
    boosting = GradientBoostingClassifier if classify else GradientBoostingRegressor
    histograms = HistGradientBoostingClassifier if classify else HistGradientBoostingRegressor
    found: dict[str, Callable[[], Any]] = {
        "linear committee": partial(ours, _EXPERTS, random_state=seed),
        "mlp committee": partial(ours, 16, expert="mlp", random_state=seed),
        "linear": partial(one_line, classify),
        "linear tree": partial(linear_tree, classify, seed, _EXPERTS),
        "random forest": partial(forest, random_state=seed),
        "boosting": partial(boosting, random_state=seed),
        "hist. boosting": partial(histograms, random_state=seed),
        "LightGBM": partial(lightgbm, classify, seed),
        "EBM": partial(ebm, classify, seed),
    }
    return found if classify else found | {"Cubist": partial(cubist, seed)}


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
