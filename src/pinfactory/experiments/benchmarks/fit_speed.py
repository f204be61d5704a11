"""Time per training step beside a plain PyTorch loop of the same model, on the same core."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np
from sklearn.datasets import make_circles

from pinfactory import SpecialistClassifier
from pinfactory.experiments.experiment import Measure, Presets, Results

TITLE = "Training a committee compared with a PyTorch loop"
ABOUT = """
Both train 4 linear experts and the paper's selector on 1,024 × 2 samples, in steps of 32 samples
with Adam, with the same objective and running priors. Times are processor time on one core; both
alternate in one run.
"""
LOG_SCALE = ("time per step",)
REQUIRES = ("torch",)
ALONE = True

_BATCH, _EXPERTS, _RESTARTS = 32, 4, 10
# What the loop trains: the paper's selector and J by Adam, whatever the library's defaults are.
_SAME_MODEL: Mapping[str, Any] = {
    "selector": "mlp",
    "start": "random",
    "objective": "free_energy",
    "beta_selector": 25.0,
    "beta_expert": 5.0,
    "batch_size": _BATCH,
    "learning_rate": 3e-3,
    "averaging": False,
    "early_stopping": False,
}
_LOOP, _ONE, _TEN = "PyTorch loop", "one fit", "ten restarts together"
_TARGETS = {_ONE: 50.0, _TEN: 100.0}


@dataclass(frozen=True)
class Settings(Presets):
    """How often all take their turn, and how long."""

    seeds: int = 5
    steps: int = 10_000
    loop_steps: int = 500

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for all turns: the first fit compiles for the others."""
    return {"turns": partial(_turns, settings)}


def _turns(settings: Settings) -> dict[str, Any]:
    jax.clear_caches()
    first = _fit(settings, _RESTARTS, seed=0)
    _fit(settings, 1, seed=0)
    _loop(100)
    found: dict[str, list[float]] = {"first": [first], _LOOP: [], _ONE: [], _TEN: []}
    for seed in range(1, 1 + settings.seeds):
        found[_LOOP].append(_loop(settings.loop_steps))
        found[_ONE].append(_fit(settings, 1, seed) / settings.steps)
        found[_TEN].append(_fit(settings, _RESTARTS, seed) / settings.steps / _RESTARTS)
    return found | {"steps": settings.steps}


def _data() -> tuple[np.ndarray, np.ndarray]:
    return make_circles(1024, noise=0.1, factor=0.5, random_state=0)


def _fit(settings: Settings, n_init: int, seed: int) -> float:
    """Return the processor time of one `fit` of all restarts."""
    committee = SpecialistClassifier(
        _EXPERTS, n_init=n_init, max_iter=settings.steps, random_state=seed, **_SAME_MODEL
    )
    X, y = _data()
    began = time.process_time()
    committee.fit(X, y)
    return time.process_time() - began


def _loop(steps: int) -> float:
    """Return the processor time of a step of the plain loop."""
    import torch

    torch.set_num_threads(1)
    X, Y = _data()
    x, y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)
    selector = torch.nn.Sequential(
        torch.nn.Linear(2, 10), torch.nn.Tanh(),
        torch.nn.Linear(10, 10), torch.nn.Tanh(),
        torch.nn.Linear(10, _EXPERTS),
    )  # fmt: skip
    experts = torch.nn.Linear(2, _EXPERTS * 2)
    optimiser = torch.optim.Adam([*selector.parameters(), *experts.parameters()], lr=3e-3)
    prior_m = torch.full((_EXPERTS,), 1 / _EXPERTS)
    prior_y = torch.full((_EXPERTS, 2), 0.5)
    began = time.process_time()
    for _ in range(steps):
        rows = torch.randint(0, len(x), (_BATCH,))
        log_m = torch.log_softmax(selector(x[rows]), -1)
        log_y = torch.log_softmax(experts(x[rows]).view(_BATCH, _EXPERTS, 2), -1)
        p_m, p_y = log_m.exp(), log_y.exp()
        with torch.no_grad():
            prior_m = 0.99 * prior_m + 0.01 * p_m.mean(0)
            share = p_m / p_m.sum(0)
            prior_y = 0.99 * prior_y + 0.01 * (share[..., None] * p_y).sum(0)
        utility = log_y.gather(2, y[rows].view(-1, 1, 1).expand(-1, _EXPERTS, 1))[..., 0]
        expert_cost = (p_y * (log_y - prior_y.log())).sum(-1)
        selector_cost = (p_m * (log_m - prior_m.log())).sum(-1)
        objective = (p_m * (utility - expert_cost / 5)).sum(-1) - selector_cost / 25
        optimiser.zero_grad()
        (-objective.mean()).backward()
        optimiser.step()
    return (time.process_time() - began) / steps


def measures(results: Results) -> list[Measure]:
    """Return times per step, and how many times faster than the loop ours is."""
    found = {name: np.asarray(values) for name, values in results["turns"].items()}
    rows = [
        Measure.over(f"time per step, {name}", 1e6 * found[name], unit="µs", higher_is_better=False)
        for name in (_LOOP, _ONE, _TEN)
    ]
    for name, target in _TARGETS.items():
        ratio = found[_LOOP] / found[name]
        rows.append(
            Measure.over(f"times faster than PyTorch, {name}", ratio, target=target, unit="×")
        )
    # The loop would train the restarts one after the other.
    ratio = _RESTARTS * results["turns"]["steps"] * found[_LOOP] / found["first"]
    name = "times faster than PyTorch, ten restarts with compilation"
    return [*rows, Measure.over(name, ratio, target=20.0, unit="×")]
