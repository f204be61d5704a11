"""Time and memory of density estimation beside scikit-learn's mixtures."""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results
from pinfactory.experiments.synthetic_data import four_gaussians

from ._densities import MODELS, OURS, THEIRS, sixteen_gaussians
from ._processes import in_new_process

TITLE = "Speed of density estimation compared with scikit-learn's mixtures"
ABOUT = """
Small data sets: processor time of a fit to 1,024 samples after compilation. The models alternate,
so that other load on the machine affects all of them equally. A large data set: processor time and
growth of peak memory for a fit to samples of 16 overlapping Gaussians in 8 dimensions, including
compilation, with one process for each model.
"""
LOG_SCALE = ("time of a fit", "seconds")
ALONE = True

_SMALL: dict[str, tuple[Callable[[], np.ndarray], int]] = {
    "1024 × 2 with 4 components": (lambda: four_gaussians(1024, 0), 4),
    "1024 × 8 with 16 components": (lambda: sixteen_gaussians(1024)[0], 16),
}


@dataclass(frozen=True)
class Settings(Presets):
    """How many turns, and how large the large set is."""

    seeds: int = 40
    rows: int = 1_000_000
    repeats: int = 3

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 10, "rows": 200_000, "repeats": 2}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every small set, and one for every turn on the large one."""
    small = {name: partial(_small, name, settings.seeds) for name in _SMALL}
    large = {
        f"large, turn {turn}": partial(_large, settings.rows, turn)
        for turn in range(settings.repeats)
    }
    return small | large


def _small(name: str, turns: int) -> dict[str, Any]:
    """Return milliseconds of processor time of every model in every turn but the first."""
    load, n = _SMALL[name]
    X = load()
    found: dict[str, list[float]] = {model: [] for model in MODELS}
    for seed in range(1 + turns):
        for model, make in MODELS.items():
            began = time.process_time()
            _fit(make(n, seed), X)
            if seed:
                found[model].append(1e3 * (time.process_time() - began))
    return {"small": name, "times": found}


def _fit(model: Any, X: np.ndarray) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers warn of iterations
        return model.fit(X)


def _large(rows: int, turn: int) -> dict[str, Any]:
    return {
        "rows": rows,
        "models": {name: in_new_process(_fit_large, name, rows, turn) for name in (OURS, THEIRS)},
    }


def _fit_large(name: str, rows: int, seed: int) -> dict[str, float]:
    """Return processor seconds, megabytes and quality of a fit to many samples."""
    X, held_out = sixteen_gaussians(rows, seed)
    model = MODELS[name](16, seed)
    before, began = _peak_mb(), time.process_time()
    _fit(model, X)
    seconds = time.process_time() - began
    return {
        "seconds": seconds,
        "memory": _peak_mb() - before,
        "log-likelihood": float(model.score(held_out)),
    }


def _peak_mb() -> float:
    """Return the most memory this process has had."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def measures(results: Results) -> list[Measure]:
    """Return times, how many times faster than scikit-learn ours is, and memory."""
    rows, ratios = [], []
    for piece in results.values():
        if "small" in piece:
            name, times = piece["small"], piece["times"]
            rows += [
                Measure.over(f"time of a fit, {name}, {model}", values, unit="ms")
                for model, values in times.items()
            ]
            for more in ("", " (n_init=4)"):
                ratio = np.divide(times[THEIRS + more], times[OURS + more])
                ratios.append(Measure.median(f"times faster, {name}{more}", ratio, unit="×"))
    large = [piece for piece in results.values() if "rows" in piece]
    if large:
        label = f"{large[0]['rows']} × 8 with 16 components"
        for quantity, unit in (("seconds", "s"), ("memory", "MB"), ("log-likelihood", "")):
            for model in (OURS, THEIRS):
                values = [piece["models"][model][quantity] for piece in large]
                rows.append(Measure.over(f"{quantity}, {label}, {model}", values, unit=unit))
        pairs = [[piece["models"][m]["seconds"] for m in (THEIRS, OURS)] for piece in large]
        ratio = np.divide(*np.transpose(pairs))
        ratios.append(Measure.over(f"times faster, {label}", ratio, unit="×"))
    return ratios + rows
