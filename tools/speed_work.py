"""Work of which `compare_commits.py` takes the time, with the public names that all commits have.

As a program it does the work whose name it reads, and prints the processor time, again and again.
"""

import inspect
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np


def make(cls: type, *args: Any, **settings: Any) -> Any:
    """Return a learner with those settings that its class knows: older ones have fewer."""
    known = inspect.signature(cls).parameters
    return cls(*args, **{name: value for name, value in settings.items() if name in known})


def committee() -> Callable[[], object]:
    """Prepare 10,000 steps of 32 rows with the paper's committee."""
    from pinfactory.estimators import SpecialistClassifier

    x = np.random.default_rng(0).normal(size=(1024, 2))
    y = (np.linalg.norm(x, axis=1) > 1.2).astype(int)
    model = make(
        SpecialistClassifier,
        4,
        selector="mlp",
        start="random",
        objective="free_energy",
        beta_selector=25.0,
        beta_expert=5.0,
        learning_rate=3e-3,
        batch_size=32,
        max_iter=10_000,
        early_stopping=False,
        n_init=1,
        random_state=0,
    )
    return lambda: model.fit(x, y)


def mixture() -> Callable[[], object]:
    """Prepare a fit of eight density experts to 200,000 rows."""
    from pinfactory.estimators import SpecialistMixture

    random = np.random.default_rng(0)
    x = random.normal(size=(200_000, 4)) + 4 * random.integers(3, size=(200_000, 1))
    model = SpecialistMixture(8, random_state=0)
    return lambda: model.fit(x)


def agent() -> Callable[[], object]:
    """Prepare ten updates of five linear experts on the double pendulum."""
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.envs import DoublePendulum

    def learn() -> object:
        return SpecialistAgent(DoublePendulum(), 5, seed=0).learn(10 * 64 * 64)

    return learn


def meta_regressor() -> Callable[[], object]:
    """Prepare 500 steps of 32 tasks with four experts for sinusoids."""
    from pinfactory.meta import MetaSpecialistRegressor
    from pinfactory.meta.tasks import Sinusoids

    model = make(
        MetaSpecialistRegressor,
        4,
        adaptation="last_layer",
        inner_steps=5,
        batch_size=32,
        max_iter=500,
        random_state=0,
    )
    return lambda: model.fit(Sinusoids())


WORK = {f.__name__: f for f in (committee, mixture, agent, meta_regressor)}


def serve() -> None:
    """Do the work whose name is read, and print its processor time, until there are no more."""
    warnings.simplefilter("ignore")
    ready: dict[str, Callable[[], object]] = {}
    for name in map(str.strip, sys.stdin):
        if name not in ready:
            ready[name] = WORK[name]()
            ready[name]()  # compiles
        begin = time.process_time()
        ready[name]()
        print("seconds", time.process_time() - begin, flush=True)


if __name__ == "__main__":
    serve()
