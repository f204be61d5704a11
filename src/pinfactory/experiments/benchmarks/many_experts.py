"""What a row costs in training and prediction with 1 to 4,096 experts."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from pinfactory import networks
from pinfactory.core.compiling import library_settings
from pinfactory.core.gaussian_experts import gaussian
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble
from pinfactory.core.utilities import log_likelihood
from pinfactory.estimators import SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Presets, Results
from pinfactory.experiments.style import GREY, PALETTE, counted, headline, new_figure, tidy

from ._steps import Steps

TITLE = "Many experts"
ABOUT = """
Gaussian experts over 20 features with a linear selector: linear experts, and perceptrons of 32
units. Training is a step of 256 rows, with all experts or with the two most probable ones
(`top_k=2`). Prediction is `predict` of 1,024 rows by all experts, by two, and by the best one
(`routing="best"`). The best one is also found with the default selector, a balanced tree whose
gates have log-odds with a standard deviation of 6, like a committee that starts as a tree. Times
are processor time on one core without compilation, alternating, as medians over turns.
"""
ALONE = True

KINDS = ("linear", "perceptrons")
ALL, TWO, BEST, TREE = "all", "two", "the best", "the best by a tree"
FEATURES, HIDDEN, BATCH, ROWS = 20, 32, 256, 1024


@dataclass(frozen=True)
class Settings(Presets):
    """Numbers of experts; seeds are turns."""

    seeds: int = 5
    experts: tuple[int, ...] = (1, 4, 16, 64, 256, 1024, 4096)
    # A turn takes as many steps as ask this many experts, within bounds.
    asked: int = 4_000_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3, "experts": (1, 16, 256)}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return a piece for every kind and number of experts."""
    return {
        f"{kind}, {counted(n, 'expert')}": partial(_measure, settings, kind, n)
        for kind in KINDS
        for n in settings.experts
    }


def _measure(settings: Settings, kind: str, n_experts: int) -> dict[str, Any]:
    steps = int(np.clip(settings.asked // (n_experts * BATCH), 4, 400))
    with library_settings():
        turns = {
            "training": {
                ALL: _training(kind, n_experts, None, steps),
                TWO: _training(kind, n_experts, 2, steps),
            },
            "prediction": _predictions(kind, n_experts),
        }
        found: dict[str, Any] = {
            what: {who: [] for who in functions} for what, functions in turns.items()
        }
        for turn in range(-1, settings.seeds):
            for what, functions in turns.items():
                for who, function in functions.items():
                    began = time.process_time()
                    n_rows = function()
                    seconds = time.process_time() - began
                    if turn >= 0:  # the first one compiles
                        found[what][who].append(seconds / n_rows)
    return found | {"kind": kind, "experts": n_experts}


def _training(kind: str, n_experts: int, top_k: int | None, steps: int) -> Callable[[], int]:
    """Return a function that takes steps and returns how many rows they had."""
    x = np.random.default_rng(0).normal(size=(4 * BATCH, FEATURES)).astype(np.float32)
    hierarchy = replace(_hierarchy(kind, n_experts), top_k=top_k)
    return partial(Steps.of(hierarchy, log_likelihood, x, np.abs(x[:, :1]), BATCH).run, steps)


def _hierarchy(kind: str, n_experts: int) -> Hierarchy:
    def expert(key: jax.Array) -> FamilyExpert:
        return FamilyExpert(_network(kind, FEATURES, 2, key=key), gaussian)

    selector = partial(_selector, FEATURES, n_experts)
    return assemble(jax.random.key(0), lambda key: selector(key=key), expert, n_experts)


def _network(kind: str, inputs: int, outputs: int, *, key: jax.Array) -> networks.Network:
    if kind == "linear":
        return networks.linear(inputs, outputs, key=key)
    return networks.mlp(inputs, outputs, (HIDDEN,), networks.relu, key=key)


def _selector(inputs: int, outputs: int, *, key: jax.Array) -> networks.Network:
    return networks.linear(inputs, outputs, key=key)


def _tree(inputs: int, outputs: int, *, key: jax.Array) -> networks.SoftTree:
    tree = networks.SoftTree.random(inputs, outputs, key=key)
    deviation = jnp.linalg.norm(tree.weight, axis=1, keepdims=True)
    return replace(tree, weight=6.0 * tree.weight / deviation)


def _predictions(kind: str, n_experts: int) -> dict[str, Callable[[], int]]:
    """Return functions that predict and return the number of rows."""
    random = np.random.default_rng(0)
    X = random.normal(size=(ROWS, FEATURES))
    fitted = {
        who: SpecialistRegressor(
            n_experts,
            expert=partial(_network, kind),
            selector=selector,
            start="random",
            early_stopping=False,
            max_iter=1,
            top_k=top_k,
            random_state=0,
        ).fit(X[:256], np.abs(X[:256, 0]))
        for who, selector, top_k in ((ALL, _selector, None), (TWO, _selector, 2), (TREE, _tree, 2))
    }
    asked = {who: partial(fitted[who].predict, X) for who in (ALL, TWO)}
    asked[BEST] = partial(fitted[TWO].predict, X, routing="best")
    asked[TREE] = partial(fitted[TREE].predict, X, routing="best")
    # Often enough for the clock.
    repeats = max(1, 256 // n_experts)

    def repeated(predict: Callable[[], Any]) -> int:
        for _ in range(repeats):
            predict()
        return repeats * ROWS

    return {who: partial(repeated, predict) for who, predict in asked.items()}


def measures(results: Results) -> list[Measure]:
    """Return what two experts save, what the best costs beside one, and the cost of a row."""
    found, rows = list(results.values()), []
    for piece in found:
        kind, experts = piece["kind"], counted(piece["experts"], "expert")
        for what in ("training", "prediction"):
            ratio = np.divide(piece[what][ALL], piece[what][TWO])
            name = f"times cheaper with top_k=2, {experts}, {what} of {kind}"
            rows.append(Measure.median(name, ratio, unit="×"))
        fewest = min(found, key=lambda other: (other["kind"] != kind, other["experts"]))
        for who in (BEST, TREE):
            ratio = np.divide(piece["prediction"][who], np.median(fewest["prediction"][who]))
            name = f"prediction by {who} beside the fewest experts, {experts}, {kind}"
            rows.append(Measure.median(name, ratio, unit="×", higher_is_better=False))
        for what in ("training", "prediction"):
            for who, values in piece[what].items():
                name = f"cost of a row in {what}, {experts}, {who} of {kind}"
                rows.append(Measure.median(name, 1e6 * np.asarray(values), unit="µs"))
    return rows


def draw(results: Results) -> Figure:
    """Draw the cost of a row against the number of experts."""
    figure = new_figure(9.0, 7.0)
    grid = figure.subplots(2, len(KINDS), sharex=True, sharey="row")
    for column, kind in enumerate(KINDS):
        own = [piece for piece in results.values() if piece["kind"] == kind]
        for row, what in enumerate(("training", "prediction")):
            axes = grid[row, column]
            for colour, who in zip(PALETTE, own[0][what], strict=False):
                values = 1e6 * np.asarray([piece[what][who] for piece in own])
                axes.plot(
                    [piece["experts"] for piece in own],
                    np.median(values, axis=1),
                    marker="o",
                    color=colour,
                    label=who,
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            headline(axes, f"{what}, {kind} experts")
            tidy(axes)
            axes.legend(frameon=False, title="who is asked")
    for axes in grid[:, 0]:
        axes.set_ylabel("µs for each row", color=GREY)
    for axes in grid[-1]:
        axes.set_xlabel("experts", color=GREY)
    return figure
