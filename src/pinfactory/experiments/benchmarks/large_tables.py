"""Large tables and many experts: memory and time of `fit` by rows, of `predict` by experts."""

import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory import SpecialistClassifier
from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import in_new_process

TITLE = "Large tables and many experts"
ABOUT = """
A fit makes one pass over a table of 20 columns in batches of 256. Memory is the growth of the peak
resident set since before the first `fit`, in units of the table (float64); every number of rows has
its own process. Time is processor time of the fits after the first, which compiles. The cost of a
prediction by the most responsible expert is compared with that of the selector alone.
"""
ALONE = True

_FEATURES, _BATCH = 20, 256


@dataclass(frozen=True)
class Settings(Presets):
    """Sizes, and how often each is measured."""

    seeds: int = 3
    rows: tuple[int, ...] = (125_000, 250_000, 500_000, 1_000_000)
    n_experts: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)

    # Smaller tables.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "rows": (125_000, 250_000),
        "n_experts": (1, 16, 256),
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every number of rows and of experts."""
    fits = {f"{n:,} rows": partial(in_new_process, _fit, n, settings.seeds) for n in settings.rows}
    asked = {f"{n} experts": partial(_predict, n, settings.seeds) for n in settings.n_experts}
    return fits | asked


def _fit(n_rows: int, repeats: int) -> dict[str, Any]:
    """Return seconds of every fit, and the memory of the first."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n_rows, _FEATURES))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    settings: dict[str, Any] = {"batch_size": _BATCH, "n_init": 1, "random_state": 0}
    SpecialistClassifier(max_iter=10, **settings).fit(X[:2000], y[:2000])
    before = _peak()
    seconds, memory = [], 0.0
    for repeat in range(1 + repeats):
        began = time.process_time()
        SpecialistClassifier(max_iter=n_rows // _BATCH, **settings).fit(X, y)
        if repeat:
            seconds.append(time.process_time() - began)
        else:
            memory = (_peak() - before) / X.nbytes
    return {"rows": n_rows, "seconds": seconds, "memory": memory}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _predict(n_experts: int, repeats: int) -> dict[str, Any]:
    """Return the best seconds a row of the selector, of the best expert and of the mixture."""
    random = np.random.default_rng(0)
    X = random.normal(size=(8192, _FEATURES))
    y = random.integers(0, 3, len(X))
    committee = SpecialistClassifier(n_experts, max_iter=20, n_init=1, random_state=0)
    committee.fit(X[:2000], y[:2000])
    asked: dict[str, Callable[[np.ndarray], Any]] = {
        "selector": committee.responsibilities,
        "best expert": partial(committee.predict_proba, routing="best"),
        "mixture": committee.predict_proba,
    }
    found: dict[str, list[float]] = {name: [] for name in asked}
    for ask in asked.values():
        ask(X)
    for _ in range(repeats):
        for name, ask in asked.items():
            times = []
            for _ in range(5):
                began = time.perf_counter()
                ask(X)
                times.append(time.perf_counter() - began)
            found[name].append(min(times) / len(X))
    return {"n_experts": n_experts, **found}


def measures(results: Results) -> list[Measure]:
    """Return memory and time by rows, and what answers cost by number of experts."""
    fits = [piece for piece in results.values() if "rows" in piece]
    asked = [piece for piece in results.values() if "n_experts" in piece]
    rows = [
        Measure(
            f"memory of a fit in tables, {piece['rows']:,} rows",
            piece["memory"],
            target=3.0,
            higher_is_better=False,
        )
        for piece in fits
    ]
    for piece in fits:
        seconds = 1e6 * np.asarray(piece["seconds"]) / piece["rows"]
        rows.append(
            Measure.over(f"time for a million rows, {piece['rows']:,} rows", seconds, unit="s")
        )
    for way in ("best expert", "mixture"):
        for piece in asked:
            ratio = np.divide(piece[way], piece["selector"])
            name = f"time of an answer by the {way} in those of the selector"
            rows.append(
                Measure.over(
                    f"{name}, {piece['n_experts']} experts",
                    ratio,
                    unit="×",
                    higher_is_better=False,
                )
            )
    return rows
