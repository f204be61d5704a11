"""The figure of the classification tasks: decisions, partitions, numbers, and the controls."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure

from pinfactory.experiments.experiment import Results
from pinfactory.experiments.style import GREY, INK, counted, tidy

from ._pictures import draw_partition, draw_probability, draw_samples, draw_scores


def draw_controls(figure: SubFigure, committees: Results, controls: list[Any]) -> None:
    """Draw the accuracy of the largest committee on every task beside its controls."""
    most = controls[0]["n_experts"]
    figure.suptitle(
        f"controls, {counted(most, 'expert')}", x=0.01, ha="left", fontweight="bold", fontsize=14.0
    )
    tasks = list(dict.fromkeys(piece["task"] for piece in controls))
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        scores = {"ours": committees[f"{task}, {counted(most, 'expert')}"]["accuracy"]}
        scores |= {p["control"]: p["accuracy"] for p in controls if p["task"] == task}
        draw_scores(axes, "ours", scores)
        axes.set_xlabel(f"accuracy (held out), {task}")


def draw_task(figure: SubFigure, title: str, found: list[Any]) -> None:
    """Draw data, decisions, partitions, accuracy, bits and p(m) of one task."""
    n = len(found)
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=14.0)
    grid = figure.add_gridspec(2, n + 3, width_ratios=[1.15, *[1.0] * n, 0.95, 0.95])
    data = figure.add_subplot(grid[:, 0])
    data.set_aspect("equal")
    draw_samples(data, found[0], size=14.0)
    data.set_title("held-out samples", fontsize=10)
    for i, piece in enumerate(found):
        above, below = (figure.add_subplot(grid[j, 1 + i]) for j in (0, 1))
        draw_probability(above, piece)
        draw_partition(below, piece)
        for axes in (above, below):
            draw_samples(axes, piece, size=3.0)
        above.set_title(
            f"{counted(piece['n_experts'], 'expert')}: {np.mean(piece['accuracy']):.3f}"
        )
        if i == 0:
            above.set_ylabel("decision p(y|x)", fontsize=10)
            below.set_ylabel("partition p(m|x)", fontsize=10)
    places = [(0, n + 1), (1, n + 1), (0, n + 2), (1, n + 2)]
    accuracy, share, selector, expert = (figure.add_subplot(grid[place]) for place in places)
    _draw_numbers(accuracy, found, "accuracy", "accuracy (held out)", (0.0, 1.18))
    _draw_numbers(selector, found, "selector_bits", "I(X;M), bits", (0.0, 2.1))
    _draw_numbers(expert, found, "expert_bits", "I(X;Y|M), bits", (0.0, 1.18))
    _draw_shares(share, found)
    for axes in (share, expert):
        axes.set_xlabel("experts")


def _draw_numbers(
    axes: Axes, found: list[Any], name: str, title: str, limits: tuple[float, float]
) -> None:
    means = [np.mean(piece[name]) for piece in found]
    spreads = [np.std(piece[name]) for piece in found]
    axes.bar(range(len(found)), means, yerr=spreads, color="#8fb4d3", width=0.65, ecolor=INK)
    for i, mean in enumerate(means):
        top = mean + spreads[i] + 0.02 * limits[1]
        axes.text(i, top, f"{mean:.2f}", ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(found)), [str(piece["n_experts"]) for piece in found])
    axes.set_ylim(limits)
    axes.set_title(title, fontsize=10)
    tidy(axes)


def _draw_shares(axes: Axes, found: list[Any]) -> None:
    """Draw p(m), the experts of every committee sorted by their share."""
    for i, piece in enumerate(found):
        mean = np.mean(piece["share"], axis=0)
        places = i + 0.7 * ((np.arange(len(mean)) + 0.5) / len(mean) - 0.5)
        axes.bar(places, mean, width=0.6 / len(mean), color="#b9a3cf")
    axes.axhline(1.0, color=GREY, lw=0.5)
    axes.set_xticks(range(len(found)), [str(piece["n_experts"]) for piece in found])
    axes.set(ylim=(0.0, 1.08))
    axes.set_title("p(m), sorted", fontsize=10)
    tidy(axes)
