"""What information buys when labour is divided, computed exactly for a small known table.

The world has sixteen states in four groups of four, and one answer for each state. The exact
answer is worth 1, another answer of the same group a half, everything else nothing. So two of
the four bits that name a state tell its group, the other two its place in the group, and experts
who each look after some of the states need only the bits that are left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory.core.exact import solve
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.style import GREY, PALETTE, counted, headline, new_figure, tidy

TITLE = "Utility against information: the exact solution for a known table"
PLACE = "Section 2.1, equation 3"
ABOUT = """
The coupled equations of selector and experts, solved to a fixed point for sixteen states in four
groups. The exact answer has utility 1, another answer of the same group ½, all others 0. The paper
has no such figure. It shows the best that learned experts can reach, and two facts. In total,
I(X;M) + I(X;Y|M), dividing labour saves no bits: one expert reaches the best utility for these
bits. But each of several experts has to process fewer bits for the same utility.
"""

_LIMITS = (0.01, 1.0, 2.0)
_EXPERTS_BUY = ("information_experts", "expected_utility")
_COLUMNS = (
    "beta_selector",
    "beta_expert",
    "expected_utility",
    "information_selector",
    "information_experts",
    "effective_experts",
)


@dataclass(frozen=True)
class Settings(Presets):
    """A block table of utilities and the prices at which it is solved.

    β₂ runs over `n_beta` values, β₁ over `n_ratio` multiples of β₂ above one: with a selector
    dearer than the experts it would never pay to have more than one of them.
    """

    seeds: int = 3
    n_groups: int = 4
    group_size: int = 4
    group_utility: float = 0.5
    n_experts: tuple[int, ...] = (1, 2, 4, 8)
    n_beta: int = 64
    beta_range: tuple[float, float] = (0.2, 60.0)
    n_ratio: int = 24
    ratio_range: tuple[float, float] = (1.05, 300.0)
    n_restarts: int = 8

    # A grid that is solved in seconds and fine enough to read.
    QUICK: ClassVar[Mapping[str, Any]] = {"n_beta": 24, "n_ratio": 10, "n_restarts": 4, "seeds": 2}

    def utility(self) -> Float[np.ndarray, "x y"]:
        """Return the table U(x, y)."""
        block = np.full((self.group_size, self.group_size), self.group_utility)
        table = np.kron(np.eye(self.n_groups), block)
        np.fill_diagonal(table, 1.0)
        return table


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return the table, and one piece for every number of experts and seed."""
    own = without(settings, "n_experts", "seeds")
    works: dict[str, Callable[[], Any]] = {"table": partial(_table, own)}
    for n_experts in settings.n_experts:
        for seed in range(settings.seeds):
            works[f"{n_experts} experts, seed {seed}"] = partial(_solve, own, n_experts, seed)
    return works


def _table(settings: Settings) -> dict[str, Any]:
    return {"utility": settings.utility(), "n_groups": settings.n_groups}


def _solve(settings: Settings, n_experts: int, seed: int) -> dict[str, Any]:
    """Solve the table for one number of experts at all prices; information is in bits."""
    beta_expert = np.geomspace(*settings.beta_range, settings.n_beta)
    ratio = np.geomspace(*settings.ratio_range, settings.n_ratio) if n_experts > 1 else 1.0
    solution = solve(
        settings.utility(),
        n_experts,
        np.outer(beta_expert, ratio).ravel(),
        np.repeat(beta_expert, np.size(ratio)),
        n_restarts=settings.n_restarts,
        seed=seed,
    )
    return {"n_experts": n_experts, **{name: getattr(solution, name) for name in _COLUMNS}}


def _curves(results: Results) -> list[dict[str, Any]]:
    """Return one curve for each number of experts, with the solutions of all seeds."""
    curves: dict[int, dict[str, Any]] = {}
    for name, piece in results.items():
        if name != "table":
            curve = curves.setdefault(piece["n_experts"], {"n_experts": piece["n_experts"]})
            for column in _COLUMNS:
                curve[column] = curve.get(column, []) + piece[column]
    return list(curves.values())


def frontier(
    information: Float[np.ndarray, " points"], utility: Float[np.ndarray, " points"]
) -> tuple[Float[np.ndarray, " best"], Float[np.ndarray, " best"]]:
    """Return the rising part of the upper concave hull.

    Points between two solutions are reached by a coin that decides which of them to use.
    """
    hull: list[tuple[float, float]] = []
    for x, y in sorted(zip(information.tolist(), utility.tolist(), strict=True)):
        if hull and y <= hull[-1][1]:
            continue
        while hull and (x <= hull[-1][0] or (len(hull) > 1 and _sags(hull[-2], hull[-1], (x, y)))):
            hull.pop()
        hull.append((x, y))
    bits, best = np.asarray(hull).T
    return bits, best


def _sags(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - a[0]) <= (c[1] - a[1]) * (b[0] - a[0])


def measures(results: Results) -> list[Measure]:
    """Return the utility of few and more bits, and what a division of labour saves in all."""
    rows = []
    curves = _curves(results)
    for limit in _LIMITS:
        for curve in curves:
            of_seeds = [
                float(np.interp(limit, *frontier(*_arrays(piece, *_EXPERTS_BUY))))
                for piece in results.values()
                if piece.get("n_experts") == curve["n_experts"]
            ]
            rows.append(
                Measure(
                    f"utility for {limit:g} bit of an expert, "
                    + counted(curve["n_experts"], "expert"),
                    float(np.mean(of_seeds)),
                    float(np.std(of_seeds)) if len(of_seeds) > 1 else None,
                )
            )
    one, several = curves[0], curves[1:]
    if one["n_experts"] == 1 and several:
        excess = max(_excess(one, curve) for curve in several)
        name = "utility beyond one expert's at equal bits in all, at the most"
        rows.append(Measure(name, excess, target=1e-3, higher_is_better=False))
    return rows


def _excess(one: Mapping[str, Any], several: Mapping[str, Any]) -> float:
    """Return by how much the utility of several experts exceeds every tangent of one expert's.

    At each β the objective of one expert is the height of a line of slope 1/β that no division of
    the same bits in all can pass.
    """
    beta, utility, bits = _arrays(one, "beta_expert", "expected_utility", "information_experts")
    selector, experts, reached = _arrays(several, "information_selector", *_EXPERTS_BUY)
    further = (selector + experts)[:, None] - bits
    return float((reached[:, None] - utility - further * np.log(2) / beta).max())


def _arrays(curve: Mapping[str, Any], *names: str) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(curve[name], dtype=float) for name in names)


def draw(results: Results) -> Figure:
    """Draw utility against total information and against the experts' share, and the plane."""
    figure = new_figure(15.0, 5.4)
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        tidy(axes)
        axes.grid(color="#eeeeee", linewidth=0.8)
        axes.set_axisbelow(True)
    data = {**results["table"], "curves": _curves(results)}
    _draw_total(left, data)
    _draw_experts(middle, data)
    _draw_plane(figure, right, data)
    return figure


def _draw_total(axes: Axes, data: Mapping[str, Any]) -> None:
    points = []
    for colour, curve in zip(_cycle(data), data["curves"], strict=True):
        selector, experts, utility = _arrays(curve, "information_selector", *_EXPERTS_BUY)
        axes.scatter(selector + experts, utility, s=9, color=colour, alpha=0.55, linewidth=0)
        points.append((selector + experts, utility))
    bits, best = frontier(*map(np.concatenate, zip(*points, strict=True)))
    axes.plot(bits, best, color="black", lw=1.5)
    axes.set(xlabel="I(X;M) + I(X;Y|M): bits in all", ylabel="expected utility", ylim=(0, 1.09))
    third = bits.max() / 3
    axes.annotate(
        "best possible,\nwith any number of experts",
        xy=(third, np.interp(third, bits, best)), xytext=(0.04, 0.82), textcoords="axes fraction",
        arrowprops={"arrowstyle": "-", "color": GREY, "shrinkB": 3}, fontsize=10,
    )  # fmt: skip
    headline(
        axes,
        "In all, dividing labour saves no bits …",
        "A dot for every pair of prices; colours as in the middle.",
    )
    _draw_table(axes, np.asarray(data["utility"]))


def _draw_table(axes: Axes, utility: np.ndarray) -> None:
    inset = axes.inset_axes((0.66, 0.10, 0.3, 0.3))
    inset.imshow(utility, cmap="Greys", vmin=0.0, vmax=1.3, interpolation="nearest")
    inset.set(xticks=[], yticks=[])
    inset.set_title("utility U(x, y)", fontsize=9)
    inset.set_xlabel("answer y", fontsize=9, labelpad=2)
    inset.set_ylabel("state x", fontsize=9, labelpad=2)


def _draw_experts(axes: Axes, data: Mapping[str, Any]) -> None:
    for colour, curve in zip(_cycle(data), data["curves"], strict=True):
        bits, utility = frontier(*_arrays(curve, *_EXPERTS_BUY))
        axes.plot(bits, utility, color=colour, lw=2.5, solid_capstyle="round")
        end = np.argmax(utility >= utility.max() - 1e-3)
        number = curve["n_experts"]
        axes.annotate(
            "1 expert" if number == 1 else str(number),
            (bits[end], utility[end]), xytext=(0, 7), textcoords="offset points",
            ha="center", color=colour, fontsize=12, fontweight="bold",
        )  # fmt: skip
    axes.set(xlabel="I(X;Y|M): bits of an expert", ylabel="expected utility", ylim=(0, 1.09))
    axes.margins(x=0.08)
    headline(
        axes,
        "… but specialists need to know less",
        "The best utility for the bits that an expert may use.",
    )


def _draw_plane(figure: Figure, axes: Axes, data: Mapping[str, Any]) -> None:
    n_groups = data["n_groups"]
    curve = min(data["curves"], key=lambda curve: abs(curve["n_experts"] - n_groups))
    selector, experts, utility = _arrays(curve, "information_selector", *_EXPERTS_BUY)
    reach = max((selector + experts).max(), 1e-3)
    for total in np.arange(0.5, reach, 0.5):
        axes.plot([0, total], [total, 0], color=GREY, lw=0.7, ls=(0, (4, 4)), zorder=1)
    dots = axes.scatter(
        selector,
        experts,
        c=utility,
        cmap="viridis",
        s=26,
        edgecolor="white",
        linewidth=0.3,
        zorder=2,
    )
    figure.colorbar(dots, ax=axes, label="expected utility", pad=0.02)
    margin = 0.04 * reach
    axes.set(
        xlabel="I(X;M): bits of the selector", ylabel="I(X;Y|M): bits of the experts",
        xlim=(-margin, max(selector.max(), reach / 4) + margin),
        ylim=(-margin, experts.max() + margin),
    )  # fmt: skip
    number = curve["n_experts"]
    headline(
        axes,
        f"Who does the work, with {counted(number, 'expert')}",
        "Along a dashed line the bits in all are equal.",
    )


def _cycle(data: Mapping[str, Any]) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(len(data["curves"]))]
