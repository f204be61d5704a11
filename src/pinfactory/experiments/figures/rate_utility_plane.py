"""Accuracy over the bits of both stages, for grids of prices and of budgets on the circles."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from pinfactory.core.constraints import Budget, Fixed, Resource
from pinfactory.core.exact import solve
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.experiments.style import counted
from pinfactory.experiments.synthetic_data import Split, classification, mesh, plane

from ._explorer import explorer, pack
from ._plane_pictures import BUDGETS, PRICES, by_experts, draw_planes_and_rates, flat
from ._replicas import LITERAL_TRAINING, Plan, train_committees

TITLE = "The rate–utility plane"
PLACE = "Section 4.1, Figure 4"
ABOUT = """
How accuracy on the circles depends on the bits of the selector, I(X;M), of the experts, I(X;Y|M),
and of the whole system, I(X;Y): the paper's grid of β₁ × β₂ × number of experts, and a grid of
budgets in bits. The paper notes that some points are "almost impossible to reach". The reason: with
cross-entropy as utility and constant experts, the selector's best answer to a price jumps at β₁ = 1
from no information to all that it can use. Prices therefore lead to the ends. Budgets reach the
points in between and find β₁ ≈ 1 by themselves.

The exact frontier, the rate–distortion function of the labels, is an upper limit for answers that
are drawn from p(y|x), as the paper's system draws them. The most probable answer is right more
often and is not bounded by bits in this way: committees that prefer the right answer only slightly
are already right nearly always. So the threshold below which the paper finds accuracy "random at
best" is very low for the most probable answer.

With `--method both` the grid of prices is also trained with the paper's method: one sampled expert
for each input, Adam 3e-4, 10,000 steps, inputs as they are.
"""


@dataclass(frozen=True)
class Settings(Presets):
    """The task, the grids, and how ours learn; the paper's method has its own steps and rate."""

    method: Method = "ours"
    seeds: int = 5
    n_samples: int = 1024
    n_experts: tuple[int, ...] = (1, 2, 4, 8)
    beta_selector: tuple[float, ...] = (
        *(0.3, 0.7, 0.9, 1.1, 1.3, 1.6, 2.0, 3.0, 5.0, 10.0, 25.0, 80.0),
    )
    beta_expert: tuple[float, ...] = (0.3, 0.7, 1.0, 1.5, 2.5, 5.0, 12.0, 30.0, 80.0)
    selector_bits: tuple[float, ...] = (
        *(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.2, 1.5, 1.9),
    )
    expert_bits: tuple[float, ...] = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
    steps: int = 10_000
    learning_rate: float = 3e-3
    resolution: int = 64

    # Coarser grids, one seed and fewer steps.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "beta_selector": (0.5, 1.0, 1.5, 2.5, 5.0, 25.0),
        "beta_expert": (0.5, 1.5, 5.0, 15.0, 50.0),
        "selector_bits": (0.1, 0.3, 0.5, 0.7, 1.0, 1.8),
        "expert_bits": (0.02, 0.1, 0.2, 0.4),
        "steps": 3000,
        "resolution": 48,
    }


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for prices and one for budgets, for every number of experts."""
    own = without(settings, "method", "n_experts")
    ours, literal = (
        {
            f"{kind}, {n} experts": partial(_train, own, kind, n, how)
            for n in settings.n_experts
            for kind in kinds
        }
        for how, kinds in ((_ours(settings), (PRICES, BUDGETS)), (LITERAL_TRAINING, (PRICES,)))
    )
    return choose_pieces(settings.method, ours, literal)


def _ours(settings: Settings) -> dict[str, Any]:
    return {"steps": settings.steps, "learning_rate": settings.learning_rate}


def _train(settings: Settings, kind: str, n_experts: int, how: Mapping[str, Any]) -> dict[str, Any]:
    """Train the whole grid as replicas; of every cell keep means, and the best as a picture."""
    split = classification("circles", settings.n_samples, 0)
    axes = plane(split.X, settings.resolution)
    first, second = _grid(settings, kind, n_experts)
    kind_of: Callable[[Any], Resource] = Fixed if kind == PRICES else Budget
    plans = [
        Plan(seed, n_experts, kind_of(jnp.asarray(a)), kind_of(jnp.asarray(b)))
        for a, b, seed in itertools.product(first, second, range(settings.seeds))
    ]
    rows = train_committees(split, plans, points=mesh(axes), **how)
    cells = []
    for i, (a, b) in enumerate(itertools.product(first, second)):
        mine = rows[i * settings.seeds : (i + 1) * settings.seeds]
        best = max(mine, key=lambda row: row["objective"])
        numbers = {name: [row[name] for row in mine] for name in _NUMBERS}
        shown = {name: best[name] for name in (*_NUMBERS, "share")}
        pictures = {name: pack(best[name]) for name in ("proba", "responsibilities")}
        cells.append({"asked": (a, b), **numbers, "shown": shown | pictures})
    return {
        "kind": kind,
        "n_experts": n_experts,
        "first": first,
        "second": second,
        "cells": cells,
        "axes": axes,
        "samples": {"X": split.X_test, "y": split.y_test},
        "frontier": _frontier(split),
    }


_NUMBERS = (
    "accuracy",
    "sampled",
    "selector_bits",
    "expert_bits",
    "overall_bits",
    "beta_selector",
    "beta_expert",
)


def _grid(settings: Settings, kind: str, n_experts: int) -> tuple[list[float], list[float]]:
    """Return the values of both stages; for a lone expert the selector has nothing to do."""
    if kind == PRICES:
        first, second = list(settings.beta_selector), list(settings.beta_expert)
    else:
        most = float(np.log2(n_experts))
        first = sorted({min(bits, most) for bits in settings.selector_bits})
        second = list(settings.expert_bits)
    return (first if n_experts > 1 else first[:1]), second


def _frontier(split: Split) -> dict[str, Any]:
    """Return the most that drawn answers can be right for their bits, by the exact solver.

    The states are the two classes as frequent as in the held-out part, an answer is worth 1 if
    right: no system that answers these samples can do better.
    """
    share = np.bincount(split.y_test) / len(split.y_test)
    beta = np.geomspace(0.05, 60.0, 120)
    solution = solve(np.eye(2), 1, beta, beta, p_x=share)
    bits, right = solution.information_experts, solution.expected_utility
    return {"bits": bits, "right": right, "beta": beta}


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return the best accuracy, what bits allow, and how closely budgets are met."""
    rows = [
        Measure(
            f"accuracy, best of {counted(number, 'expert')}",
            float(flat(mine, "accuracy").max()),
            target=0.98 if number == 4 else None,
        )
        for number, mine in by_experts(results).items()
    ]
    beyond = _beyond(results)
    rows.append(
        Measure(
            "drawn answers right beyond the exact frontier, at the most",
            float(beyond.max()),
            target=1e-3,
            higher_is_better=False,
        )
    )
    rows.append(Measure("… and on average (negative: below it)", float(beyond.mean())))
    asked, bits = _budgets(results, "selector_bits", 0.0, 0.9)
    if len(asked):
        miss = float(np.mean(abs(asked - bits)))
        name = "distance of I(X;M) from budgets below 0.9 bit"
        rows.append(Measure(name, miss, target=0.1, higher_is_better=False))
        _, found = _budgets(results, "beta_selector", 0.2, 0.9)
        name = "β₁ found for budgets between 0.2 and 0.9 bit"
        rows.append(Measure(name, float(np.mean(found)), float(np.std(found))))
    return rows


def _budgets(
    results: Results, name: str, low: float, high: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the selector's budget and one number of every training with a budget in a range."""
    pairs = [
        (cell["asked"][0], value)
        for piece in results.values()
        if piece["kind"] == BUDGETS and piece["n_experts"] > 1
        for cell in piece["cells"]
        if low < cell["asked"][0] < high
        for value in cell[name]
    ]
    asked, values = np.reshape(pairs, (-1, 2)).T
    return asked, values


def _beyond(results: Results) -> Float[np.ndarray, " trainings"]:
    """Return by how much drawn answers are right more often than their bits allow.

    Every β gives a line above the frontier; the lowest of them is the frontier.
    """
    frontier = next(iter(results.values()))["frontier"]
    bits, right, beta = (np.asarray(frontier[name]) for name in ("bits", "right", "beta"))
    lines = right + (flat(results, "overall_bits")[:, None] - bits) * np.log(2) / beta
    return flat(results, "sampled") - lines.min(axis=1)


def draw(results: Results) -> Figure:
    """Draw the plane, and accuracy over I(X;Y) for drawn and for most probable answers."""
    return draw_planes_and_rates(by_method(results))


def explore(results: Results) -> str:
    """Return the explorer: sliders for both stages and the number of experts."""
    return explorer(next(iter(by_method(results).values())))
