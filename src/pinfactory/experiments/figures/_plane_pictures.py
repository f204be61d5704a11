"""Pictures of the rate–utility plane, and the numbers of its trainings side by side."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from scipy.spatial import ConvexHull

from pinfactory.experiments.experiment import Results
from pinfactory.experiments.style import GREY, INK, PALETTE, counted, headline, new_figure, tidy

PRICES, BUDGETS = "prices", "budgets"


def flat(results: Results, name: str, kinds: Sequence[str] = (PRICES, BUDGETS)) -> np.ndarray:
    """Return one number of every training."""
    found = [
        cell[name]
        for piece in results.values()
        if piece["kind"] in kinds
        for cell in piece["cells"]
    ]
    return np.concatenate(found) if found else np.empty(0)


def by_experts(results: Results) -> dict[int, Results]:
    numbers = dict.fromkeys(piece["n_experts"] for piece in results.values())
    return {
        number: {name: p for name, p in results.items() if p["n_experts"] == number}
        for number in numbers
    }


def draw_planes_and_rates(methods: Mapping[str, Results]) -> Figure:
    """Draw a row for every method."""
    figure = new_figure(16.0, 5.3 * len(methods))
    rows = figure.subfigures(len(methods), 1, hspace=0.04, squeeze=False)[:, 0]
    for row, (method, results) in zip(rows, methods.items(), strict=True):
        if len(methods) > 1:
            row.suptitle(method.removeprefix(", ") or "ours", x=0.01, ha="left", fontweight="bold")
        _draw_plane_and_rates(row, results)
    return figure


def _draw_plane_and_rates(figure: SubFigure, results: Results) -> None:
    """Draw the plane, and accuracy over I(X;Y) for drawn and for most probable answers."""
    left, middle, right = figure.subplots(1, 3)
    _draw_plane(figure, left, results)
    _draw_overall(middle, results, "sampled")
    _draw_overall(right, results, "accuracy")
    frontier = next(iter(results.values()))["frontier"]
    middle.plot(frontier["bits"], frontier["right"], color=INK, lw=1.8, zorder=4)
    middle.annotate(
        "exact frontier", (0.28, 0.8), xytext=(0.06, 0.93), color=INK,
        arrowprops={"arrowstyle": "-", "color": GREY},
    )  # fmt: skip
    middle.set_ylabel("share of drawn answers that are right")
    right.set_ylabel("accuracy of the most probable answer")
    headline(
        middle, "What the bits of all buy …", "○ for a price, ● for a budget; one dot a training"
    )
    headline(right, "… when one may take the best guess", "the same trainings")
    right.legend(frameon=False, loc="lower right")


def _draw_plane(figure: SubFigure, axes: Axes, results: Results) -> None:
    """Draw all trainings, the surface between them, and the edge of what they reach."""
    points = np.stack([flat(results, "selector_bits"), flat(results, "expert_bits")], axis=1)
    right = flat(results, "sampled")
    style: dict[str, Any] = {"cmap": "viridis", "vmin": 0.5, "vmax": 1.0}
    axes.set_facecolor("#e4e4e4")
    if np.linalg.matrix_rank(points - points.mean(axis=0), tol=0.05) == 2:
        # Bits never measure exactly alike, which keeps the triangles apart.
        distinct, first = np.unique(points.round(3), axis=0, return_index=True)
        x, y = distinct.T
        axes.tricontourf(x, y, right[first], levels=np.linspace(0.4, 1.0, 25), **style)
        corners = points[ConvexHull(points).vertices]
        axes.fill(*corners.T, facecolor="none", edgecolor=INK, lw=1.4, ls=(0, (4, 2)))
    for kind, face in ((PRICES, "none"), (BUDGETS, "flat")):
        mine = [flat(results, name, [kind]) for name in ("selector_bits", "expert_bits", "sampled")]
        edge = INK if kind == PRICES else "white"
        x, y, colour = mine
        dots = axes.scatter(x, y, c=colour, s=26, linewidth=0.7, zorder=3, **style)
        dots.set(edgecolor=edge)
        if face == "none":
            dots.set(facecolor="none")
    # What colours mean is said above: a label beside the bar would touch the next picture's.
    figure.colorbar(axes.collections[-1], ax=axes, pad=0.02)
    reach = points.max(axis=0)
    axes.set(
        xlabel="I(X;M): bits of the selector",
        ylabel="I(X;Y|M): bits of the experts",
        xlim=(-0.03 * reach[0] - 1e-3, 1.06 * reach[0] + 1e-3),
        ylim=(-0.03 * reach[1] - 1e-3, 1.06 * reach[1] + 1e-3),
    )
    tidy(axes)
    headline(
        axes,
        "The plane of both stages",
        "colour: drawn answers that are right; grey: not reached",
    )


def _draw_overall(axes: Axes, results: Results, name: str) -> None:
    for colour, (number, mine) in zip(PALETTE, by_experts(results).items(), strict=False):
        for kind in (PRICES, BUDGETS):
            x, y = (flat(mine, column, [kind]) for column in ("overall_bits", name))
            axes.scatter(
                x,
                y,
                s=24,
                facecolor="none" if kind == PRICES else colour,
                edgecolor=colour,
                linewidth=0.9,
                label=counted(number, "expert") if kind == PRICES else None,
                alpha=0.8,
            )
    axes.set(xlabel="I(X;Y): bits of the whole system", ylim=(0.38, 1.03))
    tidy(axes)
