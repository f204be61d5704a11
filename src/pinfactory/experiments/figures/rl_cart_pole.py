"""Two linear experts share the pole on a cart: who acts where."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory import Scheduled, paper
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import (
    Method,
    by_method,
    choose_pieces,
    compare_methods,
    split_further,
)
from pinfactory.experiments.style import GREY, new_figure, tidy
from pinfactory.plotting import expert_colours

from ._rl import train

TITLE = "Who balances the pole on the cart"
PLACE = "Section 4.3, Figure 7"
ABOUT = """
A selector and two linear experts learn `CartPole-v1`. The matrix shows every pair of the four state
variables, with a dot for each state of the last update in the colour of the responsible expert;
histograms of ten bins are on the diagonal. With `--method both` the paper's agent
(`pinfactory.paper.agent`, its own β, as many steps) is in the table, in the full preset also after
ten times as many steps. The paper reports that one expert takes the states around zero and the
other the states near the boundary. We find another division: the two experts push to opposite
sides, and the selector alternates between them along a line in angle and angular velocity. A single
linear expert balances the pole as well, so nothing forces a division by difficulty. The same agents
also learn with a schedule for β (Section 7.2): both β start at a tenth and reach their value after
half of the training.
"""

NAMES = ("position", "velocity", "angle", "angular velocity")
LEARNING: dict[str, Any] = {
    "n_envs": 16,
    "n_steps": 64,
    "batch_size": 256,
    "n_epochs": 10,
    "learning_rate": 3e-3,
    "gamma": 0.98,
}
# What the names of pieces with a cooled β end in.
COOLED = ", cooled β"


@dataclass(frozen=True)
class Settings(Presets):
    """How long the agents learn, and what information costs them."""

    method: Method = "ours"
    seeds: int = 10
    total: int = 99_000
    reports: int = 6
    beta_selector: float = 100.0
    beta_expert: float = 3.0
    longer: int = 990_000

    # Fewer seeds and steps, and as many for the paper's method alone.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "total": 60_000, "reports": 4, "longer": 0}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for each seed."""
    own = without(settings, "method", "seeds", "longer")
    prices = {"beta_selector": settings.beta_selector, "beta_expert": settings.beta_expert}
    cooled = {name: _cooled(beta, settings.total) for name, beta in prices.items()}
    ours, with_cooling, literal = (
        {f"seed {seed}{label}": partial(_learn, own, seed, how) for seed in range(settings.seeds)}
        for label, how in (
            ("", LEARNING | prices),
            (COOLED, LEARNING | {"cooled": cooled}),
            ("", {"make": paper.agent}),
        )
    )
    if settings.longer:
        literal |= {
            f"seed {seed}, longer": partial(_learn_longer, own, seed, settings.longer)
            for seed in range(settings.seeds)
        }
    return choose_pieces(settings.method, ours | with_cooling, literal)


def _cooled(beta: float, total: int) -> tuple[float, float, int, str]:
    """Return the schedule of a cooled β, from a tenth to all of it in half of the minibatches."""
    minibatches = total // LEARNING["batch_size"] * LEARNING["n_epochs"]
    return 0.1 * beta, beta, minibatches // 2, "exponential"


def _learn(settings: Settings, seed: int, how: Mapping[str, Any]) -> dict[str, Any]:
    how = dict(how)
    how |= {name: Scheduled(*schedule) for name, schedule in how.pop("cooled", {}).items()}
    agent, curves = _train(settings, settings.total, seed, **how)
    states = np.asarray(agent.state_.visited.observation)
    share = agent.responsibilities(states)[:, 0]
    return {**curves, "states": states.round(4), "share": share.round(3)}


def _learn_longer(settings: Settings, seed: int, total: int) -> dict[str, Any]:
    """Train the paper's agent for more steps."""
    _, curves = _train(settings, total, seed, make=paper.agent)
    return {"quantity": f"after {total} steps", **curves}


def _train(settings: Settings, total: int, seed: int, **how: Any) -> tuple[Any, dict[str, Any]]:
    shared: dict[str, Any] = {"n_episodes": 100, "n_experts": 2, "seed": seed}
    return train("CartPole-v1", total, reports=settings.reports, **shared, **how)


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return the return of both kinds, the bits, and what cooling β brings."""
    results, further = split_further(results)
    found = list(_fixed(results).values())
    rows = []
    if longer := list(further.values()):
        after = longer[0]["quantity"]
        values = [p["final_stochastic"] for p in longer]
        rows.append(Measure.over(f"return, stochastic, {after}", values))
        rows.append(Measure.over(f"I(S;M), {after}", [p["selector_bits"][-1] for p in longer]))
    # Learning on after that, an agent now and then falls back for a while.
    for when, label, target in (("best", "best kept", 1.0), ("final", "at the end", None)):
        perfect = [min(p[f"{when}_deterministic"], p[f"{when}_stochastic"]) >= 500 for p in found]
        share = float(np.mean(perfect))
        rows.append(Measure(f"share of seeds with a return of 500, {label}", share, target=target))
    for how in ("deterministic", "stochastic"):
        rows.append(Measure.over(f"return, {how}", [p[f"final_{how}"] for p in found]))
    for name, label in (("selector_bits", "I(S;M)"), ("expert_bits", "I(S;A|M)")):
        rows.append(Measure.over(label, [p[name][-1] for p in found]))
    cooled = [p for name, p in results.items() if name.endswith(COOLED)]
    for kind, of_kind in (("fixed", found), ("cooled", cooled)):
        if cooled:
            values = [np.mean(p["stochastic"]) for p in of_kind]
            rows.append(Measure.over(f"mean return over training, stochastic, {kind} β", values))
            values = [p["final_stochastic"] for p in of_kind]
            rows.append(Measure.over(f"return at the end, stochastic, {kind} β", values))
    return rows


def _fixed(results: Results) -> dict[str, Any]:
    return {name: piece for name, piece in results.items() if not name.endswith(COOLED)}


def draw(results: Results) -> Figure:
    """Draw the matrix of state variables of the seed with the sharpest partition.

    Of our method if it was run, else of the paper's.
    """
    results = _fixed(next(iter(by_method(split_further(results)[0]).values())))
    shown = max(results.values(), key=lambda piece: piece["selector_bits"][-1])
    states, share = np.asarray(shown["states"]), np.asarray(shown["share"])
    colours = expert_colours(2)
    figure = new_figure(11.0, 10.0)
    grid = figure.subplots(4, 4)
    for row in range(4):
        for column in range(4):
            axes = grid[row, column]
            if row == column:
                _histogram(axes, states[:, row], share, colours)
            else:
                mixed = share[:, None] * colours[0] + (1.0 - share[:, None]) * colours[1]
                axes.scatter(states[:, column], states[:, row], s=5.0, color=mixed, lw=0)
            tidy(axes)
            if row == 3:
                axes.set_xlabel(NAMES[column])
            if column == 0:
                axes.set_ylabel(NAMES[row] if row else f"{NAMES[0]} (count)")
    returned = shown["final_stochastic"]
    figure.suptitle(
        f"Two linear experts on CartPole-v1: return {returned:.0f}, "
        f"I(S;M) = {shown['selector_bits'][-1]:.2f} bit, "
        f"I(S;A|M) = {shown['expert_bits'][-1]:.2f} bit",
        x=0.01,
        ha="left",
        fontweight="bold",
    )
    for expert, colour in enumerate(colours):
        figure.text(0.78 + 0.1 * expert, 0.985, f"expert {expert}", color=colour, va="top")
    return figure


def _histogram(axes: Axes, values: np.ndarray, share: np.ndarray, colours: np.ndarray) -> None:
    axes.hist(
        [values, values],
        bins=10,
        weights=[share, 1.0 - share],
        stacked=True,
        color=list(colours),
        edgecolor="white",
    )
    axes.tick_params(axis="y", colors=GREY)
