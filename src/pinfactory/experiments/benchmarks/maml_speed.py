"""Training tasks per second beside a plain PyTorch loop of MAML, on one and the same core."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory.core.training import Callback, Progress, Run
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.meta import MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids

TITLE = "Meta-training compared with a PyTorch loop"
ABOUT = """
MAML with second derivatives and one inner step on 10-shot sine curves, with 64 tasks in each step
of Adam, on the same networks: one hidden layer of 40 units, and two as published. The PyTorch loop
computes the tasks one by one, as the published PyTorch code of MAML does. Times are processor time
on one core without compilation; both alternate in one run.
"""
LOG_SCALE = ("tasks per second",)
REQUIRES = ("torch",)
ALONE = True

_TASKS, _SHOTS, _RATE = 64, 10, 0.01
_NETWORKS = {"one hidden layer": (40,), "two hidden layers": (40, 40)}


@dataclass(frozen=True)
class Settings(Presets):
    """How often both take their turn, and how long."""

    seeds: int = 3
    loop_steps: int = 20
    steps: int = 1750
    n_experts: tuple[int, ...] = (4, 16)

    QUICK: ClassVar[Mapping[str, Any]] = {"steps": 1000, "n_experts": (16,)}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for each network, and one for every committee."""
    own = without(settings, "n_experts")
    beside = {name: partial(_in_turns, own, name) for name in _NETWORKS}
    more = {
        f"{adaptation}, {n} experts": partial(_committee, own, adaptation, n)
        for adaptation in ("gradient", "last_layer")
        for n in settings.n_experts
    }
    return beside | more


def _in_turns(settings: Settings, name: str) -> dict[str, Any]:
    hidden = _NETWORKS[name]
    _loop(hidden, 2)
    found: dict[str, list[float]] = {"loop": [], "ours": []}
    for _ in range(settings.seeds):
        found["loop"].append(_loop(hidden, settings.loop_steps))
        found["ours"].append(_ours(hidden, 1, "gradient", settings.steps))
    return found


def _committee(settings: Settings, adaptation: str, n_experts: int) -> dict[str, Any]:
    turns = range(settings.seeds)
    return {"rate": [_ours((40,), n_experts, adaptation, settings.steps) for _ in turns]}


def _loop(hidden: tuple[int, ...], steps: int) -> float:
    """Return the tasks per second of the plain loop."""
    import torch

    torch.set_num_threads(1)
    curves = Sinusoids(shots=_SHOTS, queries=_SHOTS)
    widths = [1, *hidden]
    layers: list[Any] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], 1))
    weights = dict(network.named_parameters())
    optimiser = torch.optim.Adam(weights.values(), lr=1e-3)
    random = np.random.default_rng(0)

    def loss(weights: dict[str, Any], x: Any, a: Any, b: Any) -> Any:
        answer = torch.func.functional_call(network, weights, (x[:, None],))[:, 0]
        return ((answer - a * torch.sin(x + b)) ** 2).mean()

    began = time.process_time()
    for _ in range(steps):
        drawn = curves.draw(random, _TASKS)
        optimiser.zero_grad()
        for a, b, support, query in zip(*map(torch.from_numpy, drawn), strict=True):
            gradients = torch.autograd.grad(
                loss(weights, support, a, b), list(weights.values()), create_graph=True
            )
            pairs = zip(weights.items(), gradients, strict=True)
            adapted = {name: weight - _RATE * gradient for (name, weight), gradient in pairs}
            (loss(adapted, query, a, b) / _TASKS).backward()
        optimiser.step()
    return steps * _TASKS / (time.process_time() - began)


class _Clock(Callback):
    """Steps in a second of processor time, for every chunk after the first, which compiles."""

    def start(self, run: Run, total: int) -> None:
        self.rates: list[float] = []
        self._known: tuple[int, float] | None = None

    def chunk(self, progress: Progress, run: Run) -> None:
        now = (progress.step, time.process_time())
        if self._known is not None:
            self.rates.append((now[0] - self._known[0]) / (now[1] - self._known[1]))
        self._known = now


def _ours(hidden: tuple[int, ...], n_experts: int, adaptation: str, steps: int) -> float:
    """Return the tasks per second of our learner."""
    clock = _Clock()
    learner = MetaSpecialistRegressor(
        n_experts,
        adaptation=adaptation,
        inner_steps=1,
        inner_rate=_RATE,
        learn_rates=False,
        expert_hidden=hidden,
        max_iter=steps,
        batch_size=_TASKS,
        random_state=0,
    )
    learner.fit(Sinusoids(shots=_SHOTS, queries=_SHOTS), callbacks=[clock])
    return _TASKS * statistics.median(clock.rates)


def measures(results: Results) -> list[Measure]:
    """Return tasks per second, and how many times faster than the loop ours is."""
    rows, ratios = [], []
    for name, piece in results.items():
        if "rate" in piece:
            rows.append(Measure.over(f"tasks per second, ours, {name}", piece["rate"], unit="1/s"))
            continue
        ratio = np.divide(piece["ours"], piece["loop"])
        ratios.append(
            Measure.over(f"times faster than PyTorch, {name}", ratio, target=10.0, unit="×")
        )
        for who, label in (("loop", "PyTorch loop"), ("ours", "ours")):
            row = Measure.over(f"tasks per second, {label}, {name}", piece[who], unit="1/s")
            rows.append(row)
    return ratios + rows
