"""Four ways to say what a selector may spend, on one task: price, schedule, penalty, budget."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory.core.constraints import Budget, Fixed, Resource, Scheduled
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.experiments.style import GREY, PALETTE, headline, new_figure, tidy
from pinfactory.experiments.synthetic_data import classification

from ._replicas import LITERAL_TRAINING, Plan, train_committees

TITLE = "Budgets in bits, schedules and the confidence penalty"
PLACE = "Section 7.2, variants"
ABOUT = """
The paper discusses how to choose β and leaves it open: a schedule, a penalty on confidence (uniform
priors instead of learned ones), or a limit on the information itself, for which β would have to be
found. This figure compares all of them on the circles with four experts; only the limit of the
selector differs. A budget in bits is met during training, by dual ascent on log β₁, so accuracy can
be read as a function of bits. With a price this range is hardly reached: the last bit that the
selector can use here costs as much as the first, so a committee uses almost none below that price
and almost all above it. Budgets find this price, β₁ ≈ 1, by themselves. The task needs no more than
about one and a half bits, and a budget is only an upper limit. With `--method both` the first three
are also trained with the paper's method. The paper has no budgets, and says that changing β during
training brought nothing.
"""

KINDS = {
    "budget": "budget in bits",
    "fixed": "fixed β₁",
    "scheduled": "β₁ on a schedule",
    "penalty": "confidence penalty",
}
_COLOURS = dict(zip(KINDS, PALETTE[1:], strict=False))
_MARKERS = dict(zip(KINDS, "osD^", strict=True))


@dataclass(frozen=True)
class Settings(Presets):
    """One task, one committee, and the values that are tried of each kind."""

    method: Method = "ours"
    seeds: int = 10
    task: str = "circles"
    n_samples: int = 1024
    n_experts: int = 4
    n_budgets: int = 13
    n_prices: int = 16
    price_range: tuple[float, float] = (0.5, 30.0)
    beta_expert: float = 20.0
    steps: int = 10_000
    learning_rate: float = 3e-3

    # Fewer values, seeds and steps.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "n_budgets": 7, "n_prices": 7, "steps": 4000}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every kind."""
    own = without(settings, "method")
    how = {"steps": settings.steps, "learning_rate": settings.learning_rate}
    ours = {kind: partial(_train, own, kind, how) for kind in KINDS}
    literal = {kind: partial(_train, own, kind, LITERAL_TRAINING) for kind in list(KINDS)[1:]}
    return choose_pieces(settings.method, ours, literal)


def _train(settings: Settings, kind: str, how: Mapping[str, Any]) -> dict[str, Any]:
    """Train a committee for every value and seed; all of a kind side by side."""
    most = np.log2(settings.n_experts)
    budgets, prices = (
        np.linspace(0.0, most, settings.n_budgets),
        np.geomspace(*settings.price_range, settings.n_prices),
    )
    asked = [float(value) for value in (budgets if kind == "budget" else prices)]

    def resource(value: float) -> Resource:
        if kind == "budget":
            return Budget(jnp.asarray(value))
        if kind == "scheduled":
            # From half the price to the price, over the first half of training.
            start, end, steps = map(jnp.asarray, (0.5 * value, value, how["steps"] / 2))
            return Scheduled(start, end, steps, "exponential")
        return Fixed(jnp.asarray(value))

    plans = [
        Plan(seed, settings.n_experts, resource(value), Fixed(jnp.asarray(settings.beta_expert)))
        for value in asked
        for seed in range(settings.seeds)
    ]
    split = classification(settings.task, settings.n_samples, 0)
    rows = train_committees(
        split,
        plans,
        **how,
        uniform=kind == "penalty",
        points=split.X_test[:1],
    )
    names = ("accuracy", "sampled", "selector_bits", "expert_bits", "beta_selector")
    shape = (len(asked), settings.seeds)
    columns = {name: np.reshape([row[name] for row in rows], shape) for name in names}
    return {"asked": asked, "n_experts": settings.n_experts, **columns}


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return how closely budgets are met, and the accuracy that bits buy."""
    rows = []
    for kind in list(KINDS)[1:]:
        values = np.asarray(results[kind]["accuracy"])[-1]
        rows.append(Measure.over(f"accuracy, {KINDS[kind]}, largest β₁", values))
    return rows + (_of_budgets(results["budget"]) if "budget" in results else [])


def _of_budgets(budget: Any) -> list[Measure]:
    """Return how closely budgets are met, and the accuracy and β₁ that go with them."""
    asked, bits = np.asarray(budget["asked"]), np.asarray(budget["selector_bits"])
    accuracy = np.asarray(budget["accuracy"])
    # Budgets are limits: beyond a bit the task gives a selector little more to do.
    needed = asked <= 0.9
    miss = abs(bits - asked[:, None])[needed].mean(axis=0)
    over = (bits - asked[:, None]).max(axis=0)
    low: dict[str, Any] = {"target": 0.1, "higher_is_better": False}
    rows = [
        Measure.over("distance from budgets up to 0.9 bit, bits", miss, **low),
        Measure.over("most bits beyond a budget", over, **low),
    ]
    for value in (0.0, 0.5, 1.0, float(asked[-1])):
        nearest = int(abs(asked - value).argmin())
        target = 0.98 if nearest == len(asked) - 1 else None
        name = f"accuracy, budget of {asked[nearest]:g} bit"
        rows.append(Measure.over(name, accuracy[nearest], target=target))
    between = (asked > 0.2) & (asked < 0.9)
    if between.any():
        found = np.asarray(budget["beta_selector"])[between].mean(axis=0)
        rows.append(Measure.over("β₁ found for budgets between 0.2 and 0.9 bit", found))
    return rows


def draw(results: Results) -> Figure:
    """Draw what was asked against what was spent, what it bought, and which β₁ it took."""
    figure = new_figure(12.5, 9.4)
    (met, price), (best, drawn) = figure.subplots(2, 2)
    if "budget" in results:
        _draw_met(met, results["budget"])
    else:
        met.set_axis_off()
    for suffix, found in by_method(results).items():
        for kind, piece in found.items():
            bits = np.ravel(piece["selector_bits"])
            style: dict[str, Any] = {
                "color": _COLOURS[kind],
                "marker": _MARKERS[kind],
                "fillstyle": "none" if suffix else "full",
                "linestyle": "none",
                "alpha": 0.65,
                "label": f"{KINDS[kind]}{suffix}",
            }
            price.plot(np.ravel(piece["beta_selector"]), bits, **style)
            best.plot(bits, np.ravel(piece["accuracy"]), **style)
            drawn.plot(bits, np.ravel(piece["sampled"]), **style)
    price.axvline(1.0, color=GREY, lw=0.8, ls=(0, (4, 4)))
    price.set(xlabel="β₁ in the end", ylabel="I(X;M): bits of the selector", xscale="log")
    headline(price, "Prices jump", "Every mark is one training.")
    best.set(xlabel="I(X;M): bits of the selector", ylabel="accuracy (held out)")
    headline(best, "What the bits buy …", "accuracy of the most probable answer")
    drawn.set(xlabel="I(X;M): bits of the selector", ylabel="share of drawn answers that are right")
    headline(drawn, "… when answers are drawn", "as the paper's system does: y from p(y|x)")
    # Where a budget cannot be exceeded nothing is drawn.
    met.legend(*drawn.get_legend_handles_labels(), frameon=False, loc="lower right", fontsize=9)
    for axes in (met, price, best, drawn):
        tidy(axes)
    return figure


def _draw_met(axes: Axes, piece: Any) -> None:
    asked, bits = np.asarray(piece["asked"]), np.asarray(piece["selector_bits"])
    most = np.log2(piece["n_experts"])
    axes.plot([0, most], [0, most], color=GREY, lw=1.0, ls=(0, (4, 4)))
    axes.plot(
        np.repeat(asked, bits.shape[1]), bits.ravel(), "o", color=_COLOURS["budget"], alpha=0.5
    )
    axes.plot(asked, bits.mean(axis=1), color=_COLOURS["budget"], lw=2.0)
    axes.text(
        0.62 * most, 0.68 * most, "as asked", rotation=45, color=GREY, ha="center", va="center"
    )
    axes.set(xlabel="budget: bits the selector may process", ylabel="I(X;M): bits it does process")
    headline(axes, "Budgets are met", "… up to what the task has use for.")
