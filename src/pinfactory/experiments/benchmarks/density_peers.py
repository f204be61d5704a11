"""Density estimation beside scikit-learn's mixtures: held-out log-likelihood on several sets."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from sklearn.model_selection import KFold

from pinfactory.experiments.charts import draw_measures
from pinfactory.experiments.experiment import Measure, Presets, Results, without

from ._densities import MODELS, OURS, SETS

TITLE = "Density estimation compared with scikit-learn's mixtures"
ABOUT = """
Held-out log-likelihood in nats per sample, by five-fold cross-validation, with the same number of
components for all models. All other settings are the defaults.
"""


@dataclass(frozen=True)
class Settings(Presets):
    """Sets and folds; a seed draws the samples where they are drawn, and the folds."""

    seeds: int = 3
    sets: tuple[str, ...] = tuple(SETS)
    n_folds: int = 5

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every set and seed, in which all take their turn."""
    own = without(settings, "sets", "seeds")
    return {
        f"{name}, seed {seed}": partial(_compare, own, name, seed)
        for name in settings.sets
        for seed in range(settings.seeds)
    }


def _compare(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    load, n = SETS[name]
    X = load(seed)
    found: dict[str, list[float]] = {model: [] for model in MODELS}
    used = []
    folds = KFold(settings.n_folds, shuffle=True, random_state=seed)
    for train, test in folds.split(X):
        for model, make in MODELS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # peers warn of iterations
                fitted = make(n, seed).fit(X[train])
            found[model].append(float(fitted.score(X[test])))
            if model == OURS:
                used.append(float(np.sum(fitted.weights_ > 0)))
    return {"set": name, "n": n, "scores": found, "used": used}


def measures(results: Results) -> list[Measure]:
    """Return the log-likelihood of all on all sets, and the experts that ours uses."""
    rows, used = [], []
    for name in dict.fromkeys(piece["set"] for piece in results.values()):
        mine = [piece for piece in results.values() if piece["set"] == name]
        for model in mine[0]["scores"]:
            values = [value for piece in mine for value in piece["scores"][model]]
            rows.append(Measure.over(f"log-likelihood, {name}, {model}", values))
        in_use = [value for piece in mine for value in piece["used"]]
        used.append(Measure.over(f"experts in use of {mine[0]['n']}, {name}", in_use))
    return rows + used


def draw(results: Results) -> Figure:
    """Draw the log-likelihoods, a panel for each set."""
    likelihoods = [m for m in measures(results) if m.name.startswith("log-likelihood")]
    by_set = [Measure(m.name.partition(", ")[2], m.ours, m.spread) for m in likelihoods]
    return draw_measures(by_set)
