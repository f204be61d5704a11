"""What a second worker gains on a sweep, and what a task costs beside its own work."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from sklearn.datasets import make_circles

from pinfactory.core.compiling import CACHE_VARIABLE
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.sweep import SweepResult, sweep

from ._processes import in_new_process, inherited

TITLE = "Sweeps on one worker and on two"
ABOUT = """
Wall-clock time, with the start of the processes, and from the moment when every worker has trained
once. Committees: 4 linear experts and a network of two layers as selector on 1,024 circles, as in
the paper, over β₁ and seeds. Agents: PPO on the double pendulum, one for each seed. Compiled
programs are already on disk, as from a user's second sweep on; for committees the case without them
is measured, too. `train_agents`: half as many agents on two workers, compared with training one
after the other in a process that has imported everything. Cost of a task: the time between two
points of a sweep whose function does nothing, with their files in the store, on a local process and
on a Dask cluster of one worker.
"""
REQUIRES = ("distributed",)
ALONE = True

_COLD = "committees without programs on disk"
_KINDS = {"committees": 1.7, _COLD: 1.7, "agents": 1.7, "train_agents": 1.8}
_POOLS = ("processes", "Dask")


@dataclass(frozen=True)
class Settings(Presets):
    """What is trained, how often and how long, and how many tasks do nothing."""

    seeds: int = 3
    kinds: tuple[str, ...] = tuple(_KINDS)
    trainings: int = 200
    steps: int = 10_000
    agents: int = 20
    agent_steps: int = 614_400
    seed_steps: int = 1_024_000
    tasks: int = 1000

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "trainings": 40,
        "agents": 4,
        "agent_steps": 40_000,
        "seed_steps": 40_000,
        "tasks": 200,
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return a piece for every repeat of every measurement."""
    own = without(settings, "kinds", "seeds")
    found: dict[str, Callable[[], Any]] = {}
    for seed in range(settings.seeds):
        for kind in settings.kinds:
            found[f"{kind}, {seed}"] = partial(_both, own, kind)
        for pool in _POOLS:
            found[f"cost, {pool}, {seed}"] = partial(task_cost, settings.tasks, pool)
    return found


def train_committee(beta_selector: float, seed: int, steps: int) -> float:
    """Train the paper's committee; return when it was done."""
    from pinfactory import SpecialistClassifier

    X, y = make_circles(1024, noise=0.1, factor=0.5, random_state=0)
    SpecialistClassifier(
        4,
        beta_selector=beta_selector,
        selector="mlp",
        start="random",
        objective="free_energy",
        n_init=1,
        early_stopping=False,
        max_iter=steps,
        random_state=seed,
    ).fit(X, y)
    return time.monotonic()


def train_agent(seed: int, steps: int) -> float:
    """Train an agent; return when it was done."""
    from pinfactory.rl import SpecialistAgent, envs

    SpecialistAgent(envs.DoublePendulum(), n_experts=2, seed=seed).learn(steps)
    return time.monotonic()


def tell_time(n: int) -> float:
    """Return when this was called."""
    return time.monotonic()


def _both(settings: Settings, kind: str) -> dict[str, dict[str, float]]:
    """Return the trainings per second with one worker and with two."""
    with _all_cores(), TemporaryDirectory() as folder:
        # What measures time has no cache.
        cache = {CACHE_VARIABLE: folder, "JAX_ENABLE_COMPILATION_CACHE": "true"}
        with inherited({} if kind == _COLD else cache):
            if kind != _COLD:
                _rates(Settings.quick(steps=settings.steps, trainings=4, agents=2), kind, 1)
            return {str(jobs): _rates(settings, kind, jobs) for jobs in (1, 2)}


def _rates(settings: Settings, kind: str, jobs: int) -> dict[str, float]:
    if kind == "train_agents":
        return {"whole": in_new_process(_learning_rate, settings, jobs)}
    began = time.monotonic()
    run = partial(sweep, jobs=jobs, verbose=False)
    if kind == "agents":
        found = run(train_agent, {"seed": range(settings.agents), "steps": [settings.agent_steps]})
    else:
        grid = {
            "beta_selector": [2.0, 5.0, 25.0, 125.0],
            "seed": range(settings.trainings // 4),
            "steps": [settings.steps],
        }
        found = run(train_committee, grid)
    done = sorted(record["value"] for record in found)
    # From when every worker has started, and compiled, and trained once.
    running = (len(done) - jobs) / (done[-1] - done[jobs - 1])
    return {"whole": len(done) / (done[-1] - began), "running": running}


def _learning_rate(settings: Settings, jobs: int) -> float:
    """Return the agents per second of `train_agents`."""
    from pinfactory.rl import envs, train_agents

    seeds, own = range(settings.agents // 2), None if jobs == 1 else jobs
    began = time.monotonic()
    env = envs.DoublePendulum()
    train_agents(env, settings.seed_steps, n_experts=2, seeds=seeds, jobs=own)
    return len(seeds) / (time.monotonic() - began)


def task_cost(n_tasks: int, pool: str) -> float:
    """Return the seconds between two tasks of one worker that do nothing."""
    with _all_cores(), TemporaryDirectory() as folder:
        called = [record["value"] for record in _idle(pool, n_tasks, Path(folder))]
    return (max(called) - min(called)) / (n_tasks - 1)


def _idle(pool: str, n: int, store: Path) -> SweepResult:
    run = partial(sweep, tell_time, {"n": range(n)}, store=store, verbose=False)
    if pool == "processes":
        return run(jobs=1)
    from distributed import Client, LocalCluster

    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster, set_as_default=False) as client:
        return run(scheduler=client)


@contextmanager
def _all_cores() -> Iterator[None]:
    """Let workers have all cores, although what measures time is kept on one."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measures(results: Results) -> list[Measure]:
    """Return the gain of the second worker, and what a task costs."""
    rows = []
    for kind, target in _KINDS.items():
        found = [value for name, value in results.items() if name.startswith(f"{kind}, ")]
        for part, told in (("whole", ""), ("running", " without the start")):
            if found and part in found[0]["1"]:
                gains = [rates["2"][part] / rates["1"][part] for rates in found]
                name = f"throughput of two workers beside one{told}, {kind}"
                rows.append(Measure.over(name, gains, target=target, unit="×"))
    for pool in _POOLS:
        costs = [1e3 * v for name, v in results.items() if name.startswith(f"cost, {pool}")]
        row = Measure.over(
            f"cost of a task, {pool}", costs, target=5.0, unit="ms", higher_is_better=False
        )
        rows.append(row)
    return rows
