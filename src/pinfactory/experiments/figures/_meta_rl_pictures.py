"""The figure of the meta-reinforcement learning experiment."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from pinfactory.experiments.experiment import Results
from pinfactory.experiments.style import (
    GREY,
    PALETTE,
    counted,
    headline,
    new_figure,
    over_seeds,
    tidy,
)
from pinfactory.rl.meta.display import draw_shares

from ._pictures import draw_scores

# Parameters of tasks whose experts are shown.
SHOWN = ("control_sign", "gravity", "gear")


def draw_agents(results: Results, controls: Mapping[str, list[Mapping[str, Any]]]) -> Figure:
    """Draw learning curves, returns, information, who takes which tasks, and controls."""
    heights = [5.2, 3.8] + [3.0] * bool(controls)
    figure = new_figure(15.0, sum(heights))
    parts = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    top, bottom = figure.add_subfigure(parts[0]), figure.add_subfigure(parts[1])
    curves, returns, bits = top.subplots(1, 3, width_ratios=(1.0, 1.25, 0.9))
    agents = agents_of(results)
    colours = dict(zip(agents, PALETTE, strict=False))
    _draw_curves(curves, agents, colours)
    _draw_returns(returns, agents, baselines_of(results))
    _draw_information(bits, agents)
    many = [n for n in agents if n > 1]
    shown = agents[4 if 4 in many else many[-1] if many else 1][0]
    for axes, (name, partition) in zip(
        bottom.subplots(1, len(SHOWN), sharey=True), shown["partition"].items(), strict=True
    ):
        draw_shares(axes, name, partition["middle"], np.array(partition["shares"]))
        if name == SHOWN[0]:
            axes.set_ylabel("p(expert | parameter)", color=GREY)
    if shown["n_experts"] <= 8:
        axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    if controls:
        _draw_controls(figure.add_subfigure(parts[2]), agents, controls)
    bottom.suptitle(
        f"Who takes which tasks, with {shown['n_experts']} experts (first seed)",
        x=0.01, ha="left", fontsize=13, fontweight="bold",
    )  # fmt: skip
    return figure


def _draw_controls(
    figure: SubFigure,
    agents: Mapping[int, list[Mapping[str, Any]]],
    controls: Mapping[str, list[Mapping[str, Any]]],
) -> None:
    """Draw the return of several experts beside that of their controls."""
    n = next(iter(controls.values()))[0]["n_experts"]
    ours = f"ours, {counted(n, 'expert')}"
    ways = {"T": "T", "T′": "T′", "T′ after": "T′, updated"}
    for axes, (where, title) in zip(figure.subplots(1, 3), ways.items(), strict=True):
        scores = {
            name: [run["returns"][where] for run in runs]
            for name, runs in {ours: agents[n], **controls}.items()
        }
        draw_scores(axes, ours, scores, ".0f")
        axes.set_xlabel("return of an episode")
        headline(axes, f"Controls on {title}")


def _draw_curves(
    axes: Axes, agents: Mapping[int, list[Mapping[str, Any]]], colours: Mapping[int, str]
) -> None:
    for n, runs in agents.items():
        values = np.array([[point[1] for point in run["curve"]] for run in runs])
        steps = np.array([point[0] for point in runs[0]["curve"]]) / 1e6
        mean, spread = values.mean(axis=0), values.std(axis=0)
        axes.fill_between(steps, mean - spread, mean + spread, color=colours[n], alpha=0.15, lw=0)
        axes.plot(steps, mean, color=colours[n], lw=2, label=f"{n}")
    axes.legend(title="experts", frameon=False, fontsize=9)
    axes.set(xlabel="million environment steps", ylabel="return of training episodes")
    axes.set_ylim(bottom=0)
    n_seeds = max(len(runs) for runs in agents.values())
    headline(axes, "Learning on T", over_seeds("mean and deviation", n_seeds))
    tidy(axes)


def _draw_returns(
    axes: Axes,
    agents: Mapping[int, list[Mapping[str, Any]]],
    baselines: Mapping[str, list[Mapping[str, Any]]],
) -> None:
    ways = (("T", "#0072B2", "T"), ("T′", "#E69F00", "T′"), ("T′ after", "#009E73", "T′, updated"))
    for k, (where, colour, label) in enumerate(ways):
        for i, runs in enumerate(agents.values()):
            mean, spread = mean_of(run["returns"][where] for run in runs)
            axes.errorbar(
                i + 0.22 * (k - 1), mean, spread, fmt="o", color=colour, capsize=3, ms=8,
                label=label if i == 0 else None,
            )  # fmt: skip
    for j, runs in enumerate(baselines.values()):
        for where, colour, shift in (("T", "#0072B2", -0.15), ("T′", "#E69F00", 0.15)):
            for moment, size in (("before", 4), ("after", 8)):
                mean, spread = mean_of(run["returns"][f"{where} {moment}"] for run in runs)
                axes.errorbar(
                    len(agents) + j + shift, mean, spread, fmt="s", color=colour, capsize=3, ms=size
                )  # fmt: skip
    names = [*map(str, agents), *baselines]
    axes.set_xticks(range(len(names)), names)
    axes.set(xlabel="number of experts, or method", ylabel="return of an episode")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9, loc="upper left")
    squares = "Squares: before (small) and after (large) a gradient step."
    n_seeds = max(len(runs) for runs in agents.values())
    headline(
        axes,
        "Return on new tasks",
        squares if baselines else over_seeds("mean and deviation", n_seeds),
    )
    tidy(axes)


def _bars(pairs: Sequence[tuple[float, float | None]]) -> list[float] | None:
    """Return deviations; none if there is one seed."""
    spreads = [spread for _, spread in pairs if spread is not None]
    return spreads if len(spreads) == len(pairs) else None


def _draw_information(axes: Axes, agents: Mapping[int, list[Mapping[str, Any]]]) -> None:
    positions = range(len(agents))
    ways = (
        ("selector_bits", "#0072B2", "I(T;M), selector"),
        ("sign_bits", "#56B4E9", "of it about the sign"),
        ("expert_bits", "#E69F00", "I(S;A|M), experts"),
    )
    for key, colour, label in ways:
        pairs = [mean_of(run[key] for run in runs) for runs in agents.values()]
        axes.errorbar(
            positions, [mean for mean, _ in pairs], _bars(pairs),
            fmt="o-", color=colour, capsize=3, label=label,
        )  # fmt: skip
    axes.set_xticks(list(positions), [str(n) for n in agents])
    axes.set(xlabel="number of experts", ylabel="bits")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    headline(axes, "Information of both stages", "On tasks of T.")
    tidy(axes)


def agents_of(results: Results) -> dict[int, list[Mapping[str, Any]]]:
    """Return the trainings of agents by their number of experts."""
    return dict(sorted(_grouped(results, "n_experts").items()))


def baselines_of(results: Results) -> dict[str, list[Mapping[str, Any]]]:
    """Return the trainings of baselines by name."""
    return _grouped(results, "baseline")


def controls_of(results: Results) -> dict[str, list[Mapping[str, Any]]]:
    """Return the trainings of controls by name."""
    return _grouped(results, "control")


def _grouped(results: Results, key: str) -> dict[Any, list[Mapping[str, Any]]]:
    found: dict[Any, list[Mapping[str, Any]]] = {}
    for piece in results.values():
        if key in piece:
            found.setdefault(piece[key], []).append(piece)
    return found


def mean_of(values: Any) -> tuple[float, float | None]:
    """Return mean and deviation over seeds; no deviation of a single one."""
    numbers = np.array(list(values), float)
    return float(numbers.mean()), float(numbers.std(ddof=1)) if len(numbers) > 1 else None
