"""A sweep and a large fit on up to thousands of workers, simulated from costs measured here."""

import heapq
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.style import GREY, PALETTE, counted, headline, new_figure, tidy

from .sweep_speed import task_cost

TITLE = "A thousand workers, simulated"
ABOUT = """
Two costs are measured: the time that the coordinator spends on a task of a sweep, and the time of a
row in one pass of a mixture. The rest is simulated. In a sweep one coordinator sends one task after
the other, one task in a hundred takes ten times as long, a worker fails once a day on average, and
its task runs again. In a fit every pass divides 10⁹ rows among the workers, waits for the slowest,
and adds up the sums in a tree. Efficiency is the useful work divided by the time of all workers.
"""
ALONE = True

# Seconds that a message between machines takes, a common figure for a cluster's network.
MESSAGE = 1e-3
STRAGGLERS, SLOWDOWN = 0.01, 10.0
DAY, RESTART = 86_400.0, 60.0
# How many sums a node of the tree adds up, and how much the speed of machines differs.
FAN_IN, SPEED_SPREAD = 8, 0.1


@dataclass(frozen=True)
class Settings(Presets):
    """Workers, the seconds of a task, tasks for each worker, and the rows and passes of a fit."""

    seeds: int = 5
    workers: tuple[int, ...] = (1, 10, 100, 1000)
    task_seconds: tuple[float, ...] = (0.1, 1.0, 10.0, 100.0)
    tasks_per_worker: int = 100
    rows: float = 1e9
    passes: int = 50
    measured_tasks: int = 500
    measured_rows: int = 1_000_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "measured_rows": 200_000}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return a piece for every seed."""
    own = without(settings, "seeds")
    return {f"seed {seed}": partial(_run, own, seed) for seed in range(settings.seeds)}


def _run(settings: Settings, seed: int) -> dict[str, Any]:
    per_task = task_cost(settings.measured_tasks, "processes")
    per_row = row_cost(settings.measured_rows, seed)
    random = np.random.default_rng(seed)
    sweeps = {
        f"{seconds:g} s": [
            simulate_sweep(workers, settings.tasks_per_worker * workers, seconds, per_task, random)
            for workers in settings.workers
        ]
        for seconds in settings.task_seconds
    }
    passes = [
        np.mean([pass_seconds(workers, settings.rows, per_row, random) for _ in range(500)])
        for workers in settings.workers
    ]
    return {
        "task": per_task,
        "row": per_row,
        "workers": list(settings.workers),
        "sweeps": sweeps,
        "hours": [float(settings.passes * seconds / 3600.0) for seconds in passes],
        "fit": [
            settings.rows * per_row / (w * s) for w, s in zip(settings.workers, passes, strict=True)
        ],
    }


def row_cost(n_rows: int, seed: int) -> float:
    """Return the seconds that a row takes in one pass of a mixture of 8 experts over 8 features."""
    from pinfactory import SpecialistMixture

    X = np.random.default_rng(seed).normal(size=(n_rows, 8))
    mixture = SpecialistMixture(8, random_state=seed).partial_fit(X)
    began = time.perf_counter()
    mixture.partial_fit(X)
    return (time.perf_counter() - began) / n_rows


def simulate_sweep(
    n_workers: int, n_tasks: int, seconds: float, per_task: float, random: np.random.Generator
) -> float:
    """Return the efficiency of a sweep.

    The coordinator is busy for `per_task` seconds with every task, one after the other. Lost tasks
    are handed out again, and lost workers come back.
    """
    durations = seconds * np.where(random.random(n_tasks) < STRAGGLERS, SLOWDOWN, 1.0)
    waiting = durations.tolist()
    free = [(0.0, worker) for worker in range(n_workers)]
    lost_at = random.exponential(DAY, n_workers)
    coordinator = end = 0.0
    while waiting:
        now, worker = heapq.heappop(free)
        coordinator = max(now, coordinator) + per_task
        duration = waiting.pop()
        done = coordinator + duration
        if lost_at[worker] < done:
            waiting.append(duration)
            back = max(lost_at[worker], coordinator) + RESTART
            lost_at[worker] = back + random.exponential(DAY)
            heapq.heappush(free, (back, worker))
            continue
        end = max(end, done)
        heapq.heappush(free, (done, worker))
    return float(durations.sum() / (n_workers * end))


def pass_seconds(
    n_workers: int, n_rows: float, per_row: float, random: np.random.Generator
) -> float:
    """Return the seconds of one pass: the slowest worker's rows, then a tree of messages."""
    slowest = np.exp(SPEED_SPREAD * random.normal(size=n_workers)).max()
    levels = np.ceil(np.log(n_workers) / np.log(FAN_IN)) if n_workers > 1 else 0.0
    return float(n_rows / n_workers * per_row * slowest + levels * FAN_IN * MESSAGE)


def measures(results: Results) -> list[Measure]:
    """Return both costs, then the efficiencies and hours by number of workers."""
    found = list(results.values())
    rows = [
        Measure.over(
            "cost of a task for the coordinator", [1e3 * f["task"] for f in found], unit="ms"
        ),
        Measure.over("cost of a row in a pass", [1e6 * f["row"] for f in found], unit="µs"),
    ]
    workers = found[0]["workers"]
    for kind in found[0]["sweeps"]:
        for i, n in enumerate(workers):
            values = [f["sweeps"][kind][i] for f in found]
            rows.append(
                Measure.over(f"efficiency, tasks of {kind}, {counted(n, 'worker')}", values)
            )
    for i, n in enumerate(workers):
        rows.append(
            Measure.over(
                f"efficiency, passes over 10⁹ rows, {counted(n, 'worker')}",
                [f["fit"][i] for f in found],
            )
        )
    for i, n in enumerate(workers):
        rows.append(
            Measure.over(
                f"a fit of 10⁹ rows, {counted(n, 'worker')}",
                [f["hours"][i] for f in found],
                unit="h",
            )
        )
    return rows


def draw(results: Results) -> Figure:
    """Draw efficiency against the number of workers."""
    found = list(results.values())
    figure = new_figure(7.0, 4.0)
    axes = figure.subplots()
    lines = {f"tasks of {kind}": [f["sweeps"][kind] for f in found] for kind in found[0]["sweeps"]}
    lines["passes over 10⁹ rows"] = [f["fit"] for f in found]
    for colour, (name, values) in zip(PALETTE, lines.items(), strict=False):
        axes.errorbar(
            found[0]["workers"],
            np.mean(values, 0),
            np.std(values, 0),
            marker="o",
            color=colour,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_ylim(0.0, 1.05)
    axes.set_xlabel("workers", color=GREY)
    axes.legend(frameon=False)
    headline(axes, "work done by time spent")
    tidy(axes)
    return figure
