"""What the first call of each learner costs beside the second: mostly compilation."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import in_new_process

TITLE = "Compilation: the first call of each learner compared with the second"
ABOUT = """
A short training in a new process without a cache of compiled programs, and the same training again.
Times are processor time on one core without imports. Compilation is the time by which the first
call is longer. From the second process on, the cache on disk saves most of it.
"""
ALONE = True


@dataclass(frozen=True)
class Settings(Presets):
    """Seeds are processes."""

    seeds: int = 1


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every learner."""
    return {name: partial(_first_calls, settings, name) for name in CALLS}


def _first_calls(settings: Settings, name: str) -> dict[str, list[float]]:
    found = [in_new_process(_two_calls, name) for _ in range(settings.seeds)]
    return {call: [pair[n] for pair in found] for n, call in enumerate(("first", "second"))}


def _two_calls(name: str) -> tuple[float, float]:
    """Return the seconds of the first call and of the second."""
    call = CALLS[name]()
    seconds = []
    for _ in range(2):
        began = time.process_time()
        call()
        seconds.append(time.process_time() - began)
    return seconds[0], seconds[1]


# Each imports what it needs and returns one short training.


def _table(classify: bool) -> Callable[[], Any]:
    from pinfactory import SpecialistClassifier, SpecialistRegressor

    X = np.random.default_rng(0).normal(size=(1000, 8))
    if classify:
        y = (X[:, 0] * X[:, 1] > 0).astype(int)
        return lambda: SpecialistClassifier(4, max_iter=100, random_state=0).fit(X, y)
    return lambda: SpecialistRegressor(4, max_iter=100, random_state=0).fit(X, np.abs(X[:, 0]))


def _mixture() -> Callable[[], Any]:
    from pinfactory import SpecialistMixture

    X = np.random.default_rng(0).normal(size=(1000, 4))
    return lambda: SpecialistMixture(4, random_state=0).fit(X)


def _curves() -> Callable[[], Any]:
    from pinfactory.meta import MetaSpecialistRegressor
    from pinfactory.meta.tasks import Sinusoids

    tasks = Sinusoids(shots=10)
    return lambda: MetaSpecialistRegressor(4, max_iter=20, random_state=0).fit(tasks)


def _images() -> Callable[[], Any]:
    from pinfactory.meta import MetaSpecialistClassifier
    from pinfactory.meta.tasks import ArrayTasks

    random = np.random.default_rng(0)
    tasks = ArrayTasks(random.random((400, 28, 28)), np.arange(400) // 20, ways=2, shots=5)
    return lambda: MetaSpecialistClassifier(4, max_iter=20, random_state=0).fit(tasks)


def _agent() -> Callable[[], Any]:
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.envs import DoublePendulum

    return lambda: SpecialistAgent(DoublePendulum(), n_experts=4, seed=0).learn(4096)


def _meta_agent() -> Callable[[], Any]:
    from pinfactory.rl.meta import MetaSpecialistAgent, double_pendulum_tasks

    tasks = double_pendulum_tasks()
    return lambda: MetaSpecialistAgent(tasks, n_experts=4, n_tasks=16, seed=0).learn(2)


CALLS: Mapping[str, Callable[[], Callable[[], Any]]] = {
    "SpecialistClassifier": partial(_table, True),
    "SpecialistRegressor": partial(_table, False),
    "SpecialistMixture": _mixture,
    "MetaSpecialistRegressor": _curves,
    "MetaSpecialistClassifier": _images,
    "SpecialistAgent": _agent,
    "MetaSpecialistAgent": _meta_agent,
}


def measures(results: Results) -> list[Measure]:
    """Return compilation and the second call of every learner."""
    rows = [
        Measure.over(f"compilation, {name}", np.subtract(piece["first"], piece["second"]), unit="s")
        for name, piece in results.items()
    ]
    return rows + [
        Measure.over(f"second call, {name}", piece["second"], unit="s")
        for name, piece in results.items()
    ]
