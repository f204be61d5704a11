"""How long a user waits: fits at default settings, and a new process up to its first answer."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinfactory import SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import in_new_process, run_as_user

TITLE = "Time of a fit, and of the first prediction of a process"
ABOUT = """
Processor time on one core. Tables are drawn at random: normal columns and noise. The signs of three
columns decide which of four lines a target follows. Every fit has its own process; the first one
compiles and is measured separately. A million rows are read in three passes. For the first
prediction a new process imports the library, fits a classifier with default settings to the irises
and predicts, without a cache of compiled programs (cold) and with it (warm).
"""
DRAWN = ("fit", "first answer", "compilation")
ALONE = True


LINES, NETWORKS, MANY = (
    "8 lines, 16,000 × 26",
    "16 perceptrons, 16,000 × 26",
    "8 lines, 1,000,000 × 20",
)
ANSWER = "first answer of a process"
# Rows, columns and settings of each kind of fit.
FITS: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    LINES: (16_000, 26, {"n_experts": 8}),
    NETWORKS: (16_000, 26, {"n_experts": 16, "expert": "mlp"}),
    MANY: (1_000_000, 20, {"n_experts": 8, "max_iter": 3 * 1_000_000 // 1024}),
}
# The longest that anybody should wait.
_MOST = {LINES: 3.0, NETWORKS: 10.0, MANY: 30.0, "cold": 8.0, "warm": 4.0}


@dataclass(frozen=True)
class Settings(Presets):
    """What is measured, on which share of the rows; seeds are repetitions or processes."""

    seeds: int = 5
    kinds: tuple[str, ...] = (*FITS, ANSWER)
    share: float = 1.0

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every kind of fit, and one for first answers."""
    return {
        kind: partial(_first_answers, settings.seeds)
        if kind == ANSWER
        else partial(in_new_process, _fit, kind, settings.seeds, settings.share)
        for kind in settings.kinds
    }


def _fit(kind: str, repeats: int, share: float) -> dict[str, Any]:
    """Return the seconds of the first fit and of the later ones, and the experts in use."""
    n_rows, n_columns, options = FITS[kind]
    X, y = _table(int(share * n_rows), n_columns)
    seconds, in_use = [], 0.0
    for _ in range(1 + repeats):
        began = time.process_time()
        committee = SpecialistRegressor(random_state=0, **options).fit(X, y)
        seconds.append(time.process_time() - began)
        in_use = committee.effective_experts_
    return {"first": seconds[0], "seconds": seconds[1:], "experts in use": in_use}


def _table(n_rows: int, n_columns: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    X = random.normal(size=(n_rows, n_columns))
    lines = random.normal(size=(4, n_columns))
    region = np.where(X[:, 0] > 0, X[:, 1] > 0, 2 + (X[:, 2] > 0))
    y = np.sum(X * lines[region], axis=1) + 0.3 * random.normal(size=n_rows)
    return X, y


_ANSWER = """
from sklearn.datasets import load_iris
import pinfactory
X, y = load_iris(return_X_y=True)
pinfactory.SpecialistClassifier(random_state=0).fit(X, y).predict(X)
"""


def _first_answers(repeats: int) -> dict[str, list[float]]:
    """Return the seconds of processes without a cache and with one."""
    found: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for seconds in found.values():
                used, _ = run_as_user(["-c", _ANSWER], Path(folder), Path(folder) / "cache")
                seconds.append(used)
    return found


def measures(results: Results) -> list[Measure]:
    """Return seconds, compilation apart, and the experts in use."""
    rows = []

    def add(name: str, values: Sequence[float], most: float | None = None) -> None:
        rows.append(Measure.over(name, values, unit="s", higher_is_better=False, target=most))

    fits = {kind: piece for kind, piece in results.items() if kind != ANSWER}
    for kind, piece in fits.items():
        add(f"fit, {kind}", piece["seconds"], _MOST[kind])
    for cache, seconds in results.get(ANSWER, {}).items():
        add(f"{ANSWER}, {cache}", seconds, _MOST[cache])
    for kind, piece in fits.items():
        add(f"compilation, {kind}", [piece["first"] - float(np.mean(piece["seconds"]))])
    return rows + [Measure(f"experts in use, {k}", p["experts in use"]) for k, p in fits.items()]
