"""A mixture and a committee of rows that are read from Parquet, beside the same rows in memory."""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import in_new_process

TITLE = "A mixture and a committee fitted from Parquet files"
ABOUT = """
A mixture of 8 Gaussian experts and a committee of 4 linear experts learn from the same samples,
which have 8 features and come from four Gaussians. The committee's target is another linear map of
the features in each Gaussian, with noise. Every fit has its own process: all rows as one array, or
the same rows read from Parquet files in chunks. Peak memory is that of the whole process, including
the array. Time is processor time of `fit`. The committee is scored on further rows.
"""
REQUIRES = ("pyarrow", "pandas")
ALONE = True

KINDS = ("mixture", "committee")
_WAYS = ("array", "Parquet")
_FEATURES, _FILE_ROWS, _JUDGED = 8, 500_000, 100_000


@dataclass(frozen=True)
class Settings(Presets):
    """How many rows, and how often."""

    seeds: int = 3
    rows: int = 10_000_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "rows": 200_000}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return a piece for every learner and seed."""
    return {
        f"{kind}, seed {seed}": partial(_both, kind, settings.rows, seed)
        for kind in KINDS
        for seed in range(settings.seeds)
    }


def _both(kind: str, rows: int, seed: int) -> dict[str, Any]:
    import pandas as pd

    names = list("abcdefgh")
    with TemporaryDirectory() as folder:
        for i, (x, y) in enumerate(_parts(rows, seed)):
            frame = pd.DataFrame(x, columns=names)
            frame = frame.assign(y=y) if kind == "committee" else frame
            frame.to_parquet(Path(folder) / f"{i:05}.parquet")
        found = {way: in_new_process(_measured, kind, way, folder, rows, seed) for way in _WAYS}
    return found | {"kind": kind, "rows": rows}


def _parts(rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return samples and targets."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(4, _FEATURES), scale=3.0)
    weights = np.random.default_rng([seed, 1]).normal(size=(4, _FEATURES))
    for i in range(0, rows, _FILE_ROWS):
        n = min(_FILE_ROWS, rows - i)
        cluster = random.integers(4, size=n)
        x = centres[cluster] + random.normal(size=(n, _FEATURES))
        noise = np.random.default_rng([seed, 2, i]).normal(size=n)
        yield x, np.einsum("ij,ij->i", x, weights[cluster]) + noise


def _measured(kind: str, way: str, folder: str, rows: int, seed: int) -> dict[str, float]:
    """Return seconds, the largest memory of this process in MB, and what was found."""
    from pinfactory import SpecialistMixture, SpecialistRegressor

    X: Any = folder
    y: Any = "y"
    if way == "array":
        X, y = map(np.concatenate, zip(*_parts(rows, seed), strict=True))
    model: Any = SpecialistMixture(8, random_state=seed)
    if kind == "committee":
        model = SpecialistRegressor(4, random_state=seed)
    began = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - began
    unit = 1e6 if sys.platform == "darwin" else 1e3
    found = {
        "seconds": seconds,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit,
    }
    if kind == "mixture":
        return found | {"bound": model.lower_bound_}
    *_, (held_out, truth) = _parts(rows + _JUDGED, seed)
    held_out, truth = held_out[-_JUDGED:], truth[-_JUDGED:]
    if way == "Parquet":
        import pandas as pd

        held_out = pd.DataFrame(held_out, columns=model.feature_names_in_)
    score = float(model.score_samples(held_out, truth).mean())
    return found | {"score": score, "R²": model.score(held_out, truth)}


def measures(results: Results) -> list[Measure]:
    """Return times and memory, how much longer Parquet takes, and how far results are apart."""
    found = []
    for kind in KINDS:
        runs = [run for run in results.values() if run["kind"] == kind]
        found += _of_kind(kind, runs) if runs else []
    return found


def _of_kind(kind: str, runs: list[dict[str, Any]]) -> list[Measure]:
    found = []
    for way in _WAYS:
        per_row = [1e6 * run[way]["seconds"] / run["rows"] for run in runs]
        found.append(Measure.over(f"time per row, {kind}, {way}", per_row, unit="µs"))
    ratios = [run["Parquet"]["seconds"] / run["array"]["seconds"] for run in runs]
    # A committee in memory does not learn from every row.
    target = 4 / 3 if kind == "mixture" else None
    lower: Any = {"higher_is_better": False}
    found.append(
        Measure.over(f"time beside memory, {kind}", ratios, target=target, unit="×", **lower)
    )
    for way, most in zip(_WAYS, (None, 1500.0), strict=True):
        peaks = [run[way]["memory"] for run in runs]
        name = f"peak memory, {kind}, {way}"
        found.append(Measure.over(name, peaks, target=most, unit="MB", **lower))
    if kind == "mixture":
        gaps = [abs(run["Parquet"]["bound"] - run["array"]["bound"]) for run in runs]
        name = "difference of the objective in nats for each row"
        return [*found, Measure.over(f"{name}, mixture", gaps, target=1e-4, **lower)]
    for way in _WAYS:
        for name, key in (("held-out log-likelihood in nats", "score"), ("held-out R²", "R²")):
            found.append(Measure.over(f"{name}, committee, {way}", [run[way][key] for run in runs]))
    return found
