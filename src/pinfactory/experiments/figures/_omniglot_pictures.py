"""Pictures of the table of Omniglot, and the paper's numbers beside them."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory.experiments.experiment import Results
from pinfactory.experiments.methods import by_method
from pinfactory.experiments.style import GREY, counted, new_figure, tidy

PAPER_AFTER = {
    2: {1: 0.664, 5: 0.673, 10: 0.762},
    4: {1: 0.758, 5: 0.755, 10: 0.867},
    8: {1: 0.773, 5: 0.784, 10: 0.901},
    16: {1: 0.828, 5: 0.852, 10: 0.959},
}
PAPER_BITS = {
    2: {1: 0.99, 5: 0.93, 10: 0.95},
    4: {1: 1.96, 5: 1.95, 10: 1.90},
    8: {1: 2.5, 5: 2.7, 10: 2.8},
    16: {1: 3.2, 5: 3.3, 10: 3.1},
}
PAPER_BASELINES = {
    "pre-training": {1: 0.506, 5: 0.541, 10: 0.558},
    "MAML": {1: 0.812, 5: 0.880, 10: 0.892},
    "Matching Nets": {1: 0.527, 5: 0.553, 10: 0.609},
    "MAML, four blocks": {1: 0.952, 5: 0.990, 10: 0.992},
    "Matching Nets, four blocks": {1: 0.950, 5: 0.987, 10: 0.994},
}
COLOURS = {1: "#d1495b", 5: "#edae49", 10: "#30638e"}


def committee_size(piece: Any) -> int | None:
    """Return the number of experts of a committee that chooses them itself."""
    return piece["n_experts"] if "expert" in piece["learner"] else None


def draw_table(results: Results) -> Figure:
    """Draw accuracy and bits against the number of experts, and others' methods beside them."""
    rows: dict[str, list[Any]] = {}
    for suffix, pieces in by_method(results).items():
        for piece in pieces.values():
            rows.setdefault(f"rotations as {piece['rotations']}{suffix}", []).append(piece)
    figure = new_figure(21.0, 4.8 * len(rows))
    grid = figure.subplots(len(rows), 5, squeeze=False, width_ratios=[1, 1, 1, 1, 1.5])
    for row, (label, found) in zip(grid, rows.items(), strict=True):
        _draw_lines(row[0], found, "before", "before any gradient step")
        _draw_lines(row[1], found, "after", "after ten gradient steps")
        _draw_lines(row[2], found, "bits", "I(M;X) in bits")
        _draw_curves(row[3], found)
        _draw_others(row[4], found)
        row[0].set_ylabel(f"accuracy, {label}")
    return figure


def _values(piece: Any, name: str) -> np.ndarray:
    if name == "after":
        return np.asarray([np.mean(scores) for scores in piece["scores"]])
    return np.asarray(piece[name])


def _draw_lines(axes: Axes, found: list[Any], name: str, title: str) -> None:
    paper = {"after": PAPER_AFTER, "bits": PAPER_BITS}.get(name, {})
    committees = [piece for piece in found if committee_size(piece) is not None]
    for shots in dict.fromkeys(piece["shots"] for piece in committees):
        line = sorted(
            (piece for piece in committees if piece["shots"] == shots),
            key=lambda piece: piece["n_experts"],
        )
        sizes = [piece["n_experts"] for piece in line]
        means = [_values(piece, name).mean() for piece in line]
        spreads = [_values(piece, name).std() for piece in line]
        colour = COLOURS.get(shots, GREY)
        axes.errorbar(sizes, means, spreads, color=colour, marker="o", label=f"K = {shots}")
        theirs = [(n, paper[n][shots]) for n in sizes if shots in paper.get(n, {})]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), color=colour, ls=":", lw=1.2, marker="x")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({piece["n_experts"] for piece in committees}))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_xlabel("experts" + (" (crosses: paper)" if paper else ""))
    axes.set_title(title, fontsize=11)
    if name == "before":
        axes.legend(frameon=False, fontsize=9)
    tidy(axes)


def _draw_curves(axes: Axes, found: list[Any]) -> None:
    """Draw accuracy over gradient steps, of the most experts and, dashed, of the fewest."""
    committees = [piece for piece in found if piece["curve"] and committee_size(piece) is not None]
    sizes = [piece["n_experts"] for piece in committees]
    for piece in committees:
        if piece["n_experts"] in (min(sizes), max(sizes)):
            style = "-" if piece["n_experts"] == max(sizes) else "--"
            values, colour = np.mean(piece["curve"], axis=0), COLOURS.get(piece["shots"], GREY)
            axes.plot(piece["curve_steps"], values, style, color=colour, marker="o", ms=4)
    if committees:
        most, fewest = (counted(choose(sizes), "expert") for choose in (max, min))
        axes.set_title(f"{most}" + (f" (dashed: {fewest})" if most != fewest else ""), fontsize=11)
    axes.set_xlabel("gradient steps in a new task")
    tidy(axes)


def _draw_others(axes: Axes, found: list[Any]) -> None:
    """Draw others' methods and controls, with the largest committee on top."""
    largest = max((p["n_experts"] for p in found if committee_size(p) is not None), default=None)
    shown = [piece for piece in found if committee_size(piece) in (None, 1, largest)]
    names = list(dict.fromkeys(piece["learner"] for piece in shown))[::-1]
    for piece in shown:
        place = names.index(piece["learner"])
        values = _values(piece, "after")
        colour = COLOURS.get(piece["shots"], GREY)
        axes.errorbar(values.mean(), place, xerr=values.std(), color=colour, marker="o")
        theirs = PAPER_BASELINES.get(piece["learner"], {}).get(piece["shots"])
        if theirs is not None:
            axes.plot(theirs, place, marker="x", color=colour)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_title("after adaptation (crosses: paper)", fontsize=11)
    axes.set_xlabel("accuracy")
    tidy(axes)
