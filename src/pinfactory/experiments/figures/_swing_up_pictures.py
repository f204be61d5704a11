"""The figure of the swing-ups: returns, bits, who acts where, and controls."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from pinfactory.experiments.controls import split_controls
from pinfactory.experiments.experiment import Results
from pinfactory.experiments.methods import by_method
from pinfactory.experiments.style import GREY, PALETTE, headline, new_figure, over_seeds, tidy
from pinfactory.plotting import expert_colours

from ._pictures import draw_scores
from ._rl import draw_curves, label_steps
from ._swing_up_tasks import EIGHT, HELD, TASKS, Task


def solved(piece: Mapping[str, Any]) -> bool:
    """Return whether both kinds of return are those of a solved task."""
    level = TASKS[piece["task"]].solved
    return bool(min(piece["final_deterministic"], piece["final_stochastic"]) >= level)


def groups_of(results: Results) -> dict[tuple[str, str], list[Any]]:
    """Return the trainings by task and kind of agent."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for suffix, pieces in by_method(results).items():
        for piece in pieces.values():
            groups.setdefault((piece["task"], f"{piece['agent']}{suffix}"), []).append(piece)
    return groups


def draw(results: Results) -> Figure:
    """Draw, for every task, returns, bits, and who acts where; then the controls."""
    results, controls = split_controls(results)
    groups = groups_of(results)
    tasks = list(dict.fromkeys(name for name, _ in groups))
    heights = [5.2 * len(tasks)] + [3.6] * bool(controls)
    figure = new_figure(18.5, sum(heights))
    parts = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    if controls:
        _draw_controls(parts[-1], groups, list(controls.values()))
    rows = parts[0].subplots(len(tasks), 4, squeeze=False, width_ratios=[1.2, 1.0, 1.1, 0.9])
    for row, name in zip(rows, tasks, strict=True):
        kinds = {kind: found for (task, kind), found in groups.items() if task == name}
        _draw_returns(row[0], TASKS[name], kinds)
        _draw_bits(row[1], kinds)
        # Of the seeds that solve it, the one whose roles differ most.
        shown = max(
            kinds.get(HELD) or kinds.get(EIGHT) or list(kinds.values())[-1],
            key=lambda p: (solved(p), np.ptp(np.asarray(p["upright"])[_busy(p)])),
        )
        _draw_partition(row[2], TASKS[name], shown)
        _draw_roles(row[3], shown)
    return figure


def _draw_controls(
    figure: SubFigure, groups: Mapping[tuple[str, str], list[Any]], controls: Sequence[Any]
) -> None:
    """Draw the stochastic return of a committee on every task beside its controls."""
    tasks = list(dict.fromkeys(piece["task"] for piece in controls))
    panels = figure.subplots(1, len(TASKS))
    for axes in panels[len(tasks) :]:
        axes.set_axis_off()
    for axes, name in zip(panels, tasks, strict=False):
        mine = [piece for piece in controls if piece["task"] == name]
        ours = mine[0]["committee"]
        scores = {ours: [piece["final_stochastic"] for piece in groups[name, ours]]}
        for piece in mine:
            scores.setdefault(piece["control"], []).append(piece["final_stochastic"])
        draw_scores(axes, ours, scores, ".0f")
        axes.axvline(TASKS[name].solved, color=GREY, lw=1.0, ls=":")
        axes.set_xlabel("stochastic return; dotted: solved")
        headline(axes, f"Controls, {TASKS[name].title.lower()}")


def _draw_returns(axes: Axes, task: Task, kinds: Mapping[str, Any]) -> None:
    for colour, (kind, found) in zip(PALETTE, kinds.items(), strict=False):
        label = f"{kind}: {sum(map(solved, found))} of {len(found)} solve it"
        draw_curves(axes, found, "stochastic", colour, label)
    axes.axhline(task.solved, color=GREY, lw=1.0, ls=":")
    label_steps(axes)
    axes.set(ylabel="return")
    # Below the axes: curves fill all of them.
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.2))
    shown_of = over_seeds("median and range", max(map(len, kinds.values())))
    headline(axes, task.title, f"stochastic return: {shown_of}; dotted: solved")
    tidy(axes)


def _draw_bits(axes: Axes, kinds: Mapping[str, Any]) -> None:
    for colour, (kind, found) in zip(PALETTE, kinds.items(), strict=False):
        steps = np.asarray(found[0]["steps"])
        for name, style in (("selector_bits", "-"), ("expert_bits", "--")):
            if name == "expert_bits" or len(found[0]["upright"]) > 1:
                values = np.median([piece[name] for piece in found], axis=0)
                axes.plot(steps, values, style, color=colour, label=kind if style == "--" else None)
    label_steps(axes)
    axes.set(ylabel="bits")
    headline(axes, "Information", "solid: I(S;M) of the selector; dashed: I(S;A|M) of the experts")
    tidy(axes)


def _draw_partition(axes: Axes, task: Task, piece: Mapping[str, Any]) -> None:
    view, responsible = np.asarray(piece["view"]), np.asarray(piece["responsible"])
    colours = expert_colours(responsible.shape[1])
    axes.scatter(view[:, 0], view[:, 1], s=6.0, color=np.clip(responsible @ colours, 0, 1), lw=0)
    axes.set(xlabel=task.labels[0], ylabel=task.labels[1])
    axes.set_xticks([-np.pi, 0.0, np.pi], ["down", "up", "down"])
    headline(axes, "Who acts where", f"states of {piece['agent']}, clearest seed")
    tidy(axes)


def _busy(piece: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(piece["responsibility"]) > 0.02


def _draw_roles(axes: Axes, piece: Mapping[str, Any]) -> None:
    upright, busy = np.asarray(piece["upright"]), np.flatnonzero(_busy(piece))
    share, colours = np.asarray(piece["responsibility"]), expert_colours(len(upright))
    order = busy[np.argsort(upright[busy])]
    rows, up = np.arange(len(order)), share[order] * upright[order]
    axes.barh(rows, up, color=colours[order])
    axes.barh(rows, share[order] - up, left=up, color=colours[order], alpha=0.35)
    axes.set_yticks(rows, [f"expert {m}\nup {upright[m]:.0%} of its time" for m in order])
    axes.set(xlim=(0, 1), xlabel="share of all time")
    headline(axes, "Who swings, who balances", "full colour: pole up; pale: not")
    tidy(axes)
