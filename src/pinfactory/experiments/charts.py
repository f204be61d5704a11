"""The figure of an experiment that draws none itself: numbers as dots with their spread."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from .experiment import Experiment, Measure, Results
from .style import GREY, PALETTE, headline, new_figure, tidy


def draw_figure(experiment: Experiment, results: Results) -> Figure:
    """Return the figure that an experiment draws; without a `draw`, that of its measures."""
    if hasattr(experiment, "draw"):
        return experiment.draw(results)
    drawn = getattr(experiment, "DRAWN", "")
    shown = [m for m in experiment.measures(results) if m.name.startswith(drawn)]
    return draw_measures(shown, log=getattr(experiment, "LOG_SCALE", ()))


def draw_measures(measures: Sequence[Measure], *, log: Sequence[str] = ()) -> Figure:
    """Draw a panel for every quantity, the first part of a measure's name.

    Parameters
    ----------
    measures
        The numbers.
    log
        Quantities that are drawn on a logarithmic scale.
    """
    panels: dict[str, list[Measure]] = {}
    for measure in measures:
        panels.setdefault(measure.name.partition(", ")[0], []).append(measure)
    n_rows = [max(2, len(rows)) for rows in panels.values()]
    figure = new_figure(9.0, 0.9 * len(panels) + 0.3 * sum(n_rows))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=n_rows)[:, 0]
    for axes, (quantity, rows) in zip(grid, panels.items(), strict=True):
        for place, measure in enumerate(rows):
            axes.errorbar(
                measure.ours, place, xerr=measure.spread, fmt="o", color=PALETTE[2], capsize=3
            )
            if measure.target is not None:
                axes.plot(measure.target, place, "|", color=PALETTE[5], ms=16, mew=2)
        names = [measure.name.partition(", ")[2] or quantity for measure in rows]
        axes.set_yticks(range(len(rows)), names)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xscale("log" if quantity in log else "linear")
        axes.grid(axis="x", color="#e4e4e4", lw=0.8)
        axes.set_axisbelow(True)
        unit = f" in {rows[0].unit}" if rows[0].unit not in ("", "×") else ""
        headline(axes, quantity + unit)
        tidy(axes)
    told = ["mean and deviation" if any(m.spread is not None for m in measures) else "one value"]
    if any(m.target is not None for m in measures):
        told.append("red: what we promise")
    figure.supxlabel("; ".join(told), fontsize=10, color=GREY)
    return figure
