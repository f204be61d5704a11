"""The figure of the sine curves: errors, rate and utility, partitions, adapted curves."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from pinfactory.experiments.controls import split_controls
from pinfactory.experiments.experiment import Results
from pinfactory.experiments.methods import LITERAL, by_method
from pinfactory.experiments.style import GREY, INK, PALETTE, counted, headline, new_figure, tidy

from ._pictures import draw_scores, partition_image

RULES = {"none": "no adaptation", "gradient": "10 gradient steps", "last_layer": "last layer"}
MAML = {"MAML, one hidden layer": (40,), "MAML, two hidden layers": (40, 40)}


def pieces_of(results: Results, rule: str, shots: int) -> list[dict[str, Any]]:
    """Return the pieces of one rule by number of experts."""
    mine = [p for p in results.values() if p.get("rule") == rule and p["shots"] == shots]
    return sorted(mine, key=lambda piece: piece["n_experts"])


def draw(results: Results) -> Figure:
    """Draw errors by number of experts, rate, controls, partitions and curves of every K."""
    results, controls = split_controls(results)
    found = by_method(results)
    # Partitions and curves are ours, if there are any.
    results = next(iter(found.values()))
    all_shots = sorted({p["shots"] for p in results.values() if "shots" in p})
    rule = "none" if any(p.get("rule") == "none" for p in results.values()) else "gradient"
    heights = [4.2] + [3.0] * bool(controls) + [3.0] * (2 * len(all_shots))
    figure = new_figure(13.0, sum(heights))
    top, *rows = cast(
        Sequence[SubFigure], figure.subfigures(len(heights), 1, height_ratios=heights)
    )
    if controls:
        _draw_controls(rows.pop(0), results, list(controls.values()))
    panels = top.subplots(1, len(all_shots) + 1)
    for axes, shots in zip(panels, all_shots, strict=False):
        _draw_errors(axes, results, shots, found.get(LITERAL, {}))
    _draw_rate(panels[-1], results, max(all_shots))
    partitions, curves = rows[: len(all_shots)], rows[len(all_shots) :]
    for part, shots in zip(partitions, all_shots, strict=True):
        several = [p for p in pieces_of(results, rule, shots) if p["n_experts"] > 1]
        _draw_row(part, several, _draw_partition)
    for part, shots in zip(curves, all_shots, strict=True):
        _draw_row(part, pieces_of(results, rule, shots), _draw_curves)
    return figure


def _draw_controls(part: SubFigure, results: Results, controls: Sequence[Any]) -> None:
    """Draw the error of the most experts with every rule beside that of its controls."""
    rules = list(dict.fromkeys(piece["rule"] for piece in controls))
    for axes, rule in zip(part.subplots(1, len(rules), squeeze=False)[0], rules, strict=True):
        mine = [piece for piece in controls if piece["rule"] == rule]
        ours = pieces_of(results, rule, mine[0]["shots"])[-1]
        label = f"ours, {counted(ours['n_experts'], 'expert')}"
        scores = {label: ours["error"]} | {piece["control"]: piece["error"] for piece in mine}
        draw_scores(axes, label, scores, ".3g")
        axes.set_xlabel("mean squared error")
        headline(axes, f"Controls, {RULES[rule]}", f"K = {ours['shots']}")


def _draw_row(
    part: SubFigure, line: Sequence[dict[str, Any]], one: Callable[[Axes, dict[str, Any]], None]
) -> None:
    """Draw the same of 1, 2, … experts side by side."""
    for axes, piece in zip(part.subplots(1, len(line), squeeze=False)[0], line, strict=True):
        one(axes, piece)


def _draw_errors(axes: Axes, results: Results, shots: int, literal: Results) -> None:
    if line := pieces_of(literal, "none", shots):
        number = [piece["n_experts"] for piece in line]
        for name, style in (("error", "s--"), ("after", "s:")):
            errors = [np.mean(piece[name]) for piece in line]
            label = "the paper's method" + ", after ten steps" * (name == "after")
            axes.plot(number, errors, style, color=INK, ms=4, label=label)
    for rule, colour in zip(RULES, PALETTE[1:], strict=False):
        line = pieces_of(results, rule, shots)
        if not line:
            continue
        number = [piece["n_experts"] for piece in line]
        mean = np.array([np.mean(piece["error"]) for piece in line])
        axes.plot(number, mean, "o-", color=colour, label=RULES[rule])
        for n, piece in zip(number, line, strict=True):
            axes.plot([n] * len(piece["error"]), piece["error"], ".", color=colour, alpha=0.4)
    for style, name in zip((":", "--"), MAML, strict=True):
        for piece in results.values():
            if piece.get("maml") == name and piece["shots"] == shots:
                axes.axhline(np.mean(piece["error"]), color=GREY, ls=style, label=name)
    ticks = sorted({p["n_experts"] for p in results.values() if "rule" in p})
    axes.set(xscale="log", yscale="log", xlabel="experts", ylabel="mean squared error")
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=8)
    headline(axes, f"{shots} point{'s' * (shots > 1)}")
    tidy(axes)


def _draw_rate(axes: Axes, results: Results, shots: int) -> None:
    found = sorted(
        (np.mean(p["bits"]), np.mean(p["error"]), np.std(p["error"]))
        for p in results.values()
        if "budget" in p
    )
    if found:
        bits, error, spread = np.array(found).T
        axes.fill_between(bits, -error - spread, -error + spread, color=PALETTE[2], alpha=0.2)
        axes.plot(bits, -error, "o-", color=PALETTE[2], label="budgets in bits")
    for piece in pieces_of(results, "none", shots):
        axes.plot(np.mean(piece["bits"]), -np.mean(piece["error"]), "s", color=PALETTE[1])
        axes.annotate(
            str(piece["n_experts"]),
            (float(np.mean(piece["bits"])), -float(np.mean(piece["error"]))),
            xytext=(5, -9),
            textcoords="offset points",
            color=GREY,
        )
    axes.plot([], [], "s", color=PALETTE[1], label="numbers of experts, fixed β")
    axes.set(xlabel="I(M;X) in bits", ylabel="utility: minus squared error")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    headline(axes, "Rate and utility")
    tidy(axes)


def _draw_partition(axes: Axes, piece: dict[str, Any]) -> None:
    partition = piece["partition"]
    phase, amplitude = (np.asarray(partition[name]) for name in ("phase", "amplitude"))
    shares = np.asarray(partition["responsibilities"]).reshape(len(amplitude), len(phase), -1)
    axes.imshow(
        partition_image(shares),
        extent=(phase[0], phase[-1], amplitude[0], amplitude[-1]),
        origin="lower",
        aspect="auto",
    )
    axes.set(xlabel="phase b", ylabel="amplitude a")
    headline(axes, f"{piece['n_experts']} experts share the curves", f"K = {piece['shots']}")


def _draw_curves(axes: Axes, piece: dict[str, Any]) -> None:
    for curve, colour in zip(piece["curves"], PALETTE[1:], strict=False):
        axes.plot(curve["grid"], curve["truth"], color=INK, lw=0.8, ls="--")
        axes.plot(curve["grid"], curve["answer"], color=colour)
        axes.plot(curve["x"], curve["y"], "o", color=colour, ms=4)
    axes.set(xlabel="x", ylim=(-6.0, 6.0))
    headline(
        axes, counted(piece["n_experts"], "expert"), f"K = {piece['shots']}, {RULES[piece['rule']]}"
    )
    tidy(axes)
