"""A mixture of rows that are read from Parquet, beside the same rows in memory."""

import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import in_new_process

TITLE = "A mixture fitted from Parquet files"
ABOUT = """
8 Gaussian experts on samples of 8 features from four Gaussians, in a process of its own each time:
all rows as one array, and the same rows read from Parquet files in chunks. Peak memory is that of
the whole process, with the array or without it.
"""
REQUIRES = ("pyarrow", "pandas")
ALONE = True

_WAYS = ("array", "Parquet")
_FEATURES, _FILE_ROWS = 8, 500_000


@dataclass(frozen=True)
class Settings(Presets):
    """How many rows, and how often."""

    seeds: int = 3
    rows: int = 10_000_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "rows": 1_000_000}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return a piece for every seed."""
    return {f"seed {seed}": partial(_both, settings.rows, seed) for seed in range(settings.seeds)}


def _both(rows: int, seed: int) -> dict[str, Any]:
    import pandas as pd

    with TemporaryDirectory() as folder:
        for i, part in enumerate(_parts(rows, seed)):
            frame = pd.DataFrame(part, columns=list("abcdefgh"))
            frame.to_parquet(Path(folder) / f"{i:05}.parquet")
        found = {way: in_new_process(_measured, way, folder, rows, seed) for way in _WAYS}
    return found | {"rows": rows}


def _parts(rows: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, _FEATURES), scale=3.0)
    sizes = [min(_FILE_ROWS, rows - i) for i in range(0, rows, _FILE_ROWS)]
    return [centres[random.integers(4, size=n)] + random.normal(size=(n, 8)) for n in sizes]


def _measured(way: str, folder: str, rows: int, seed: int) -> dict[str, float]:
    """Return seconds, the largest memory of this process in MB, and what was found."""
    from pinfactory import SpecialistMixture

    X = np.concatenate(_parts(rows, seed)) if way == "array" else folder
    mixture = SpecialistMixture(8, random_state=seed)
    began = time.perf_counter()
    mixture.fit(X)
    seconds = time.perf_counter() - began
    unit = 1e6 if sys.platform == "darwin" else 1e3
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    return {"seconds": seconds, "memory": peak, "bound": mixture.lower_bound_}


def measures(results: Results) -> list[Measure]:
    """Return times and memory, and how much longer Parquet takes."""
    runs = list(results.values())
    found = []
    for way in _WAYS:
        per_row = [1e6 * run[way]["seconds"] / run["rows"] for run in runs]
        found.append(Measure.over(f"time per row, {way}", per_row, unit="µs"))
    ratios = [run["Parquet"]["seconds"] / run["array"]["seconds"] for run in runs]
    found.append(
        Measure.over("time beside memory", ratios, target=4 / 3, higher_is_better=False, unit="×")
    )
    for way, target in zip(_WAYS, (None, 1500.0), strict=True):
        peaks = [run[way]["memory"] for run in runs]
        found.append(
            Measure.over(
                f"peak memory, {way}", peaks, target=target, higher_is_better=False, unit="MB"
            )
        )
    gaps = [abs(run["Parquet"]["bound"] - run["array"]["bound"]) for run in runs]
    name = "difference of the objective in nats for each row"
    return [*found, Measure.over(name, gaps, target=1e-4, higher_is_better=False)]
