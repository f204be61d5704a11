"""What information buys when labour is divided, computed exactly for a small known table.

The world has sixteen states in four groups of four, and one answer for each state. The exact
answer is worth 1, another answer of the same group a half, everything else nothing. So two of
the four bits that name a state tell its group, the other two its place in the group, and experts
who each look after some of the states need only the bits that are left.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm import tqdm

from pinfactory.core.exact import Solution, solve

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
_GREY = "#777777"
_LIMITS = (0.01, 1.0, 2.0)


@dataclass(frozen=True)
class Settings:
    """A block table of utilities and the prices at which it is solved.

    β₂ runs over `n_beta` values, β₁ over `n_ratio` multiples of β₂ above one: with a selector
    dearer than the experts it would never pay to have more than one of them.
    """

    n_groups: int = 4
    group_size: int = 4
    group_utility: float = 0.5
    n_experts: tuple[int, ...] = (1, 2, 4, 8)
    n_beta: int = 64
    beta_range: tuple[float, float] = (0.2, 60.0)
    n_ratio: int = 24
    ratio_range: tuple[float, float] = (1.05, 300.0)
    n_restarts: int = 8
    seed: int = 0

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return a grid that is solved in seconds and fine enough to read."""
        return cls(**{"n_beta": 32, "n_ratio": 12} | changes)

    @classmethod
    def fine(cls, **changes: Any) -> "Settings":
        """Return a grid with smooth curves."""
        return cls(**changes)

    def utility(self) -> Float[np.ndarray, "x y"]:
        """Return the table U(x, y)."""
        block = np.full((self.group_size, self.group_size), self.group_utility)
        table = np.kron(np.eye(self.n_groups), block)
        np.fill_diagonal(table, 1.0)
        return table


def run(settings: Settings, *, progress: bool = False) -> dict[str, Any]:
    """Solve the table for every number of experts and all prices; information is in bits."""
    utility = settings.utility()
    curves = []
    for n_experts in tqdm(settings.n_experts, desc="experts", delay=2.0, disable=not progress):
        beta_expert = np.geomspace(*settings.beta_range, settings.n_beta)
        ratio = np.geomspace(*settings.ratio_range, settings.n_ratio) if n_experts > 1 else 1.0
        solution = solve(
            utility,
            n_experts,
            np.outer(beta_expert, ratio).ravel(),
            np.repeat(beta_expert, np.size(ratio)),
            n_restarts=settings.n_restarts,
            seed=settings.seed,
        )
        curves.append({"n_experts": n_experts, **_columns(solution)})
    return {"settings": asdict(settings), "utility": utility.tolist(), "curves": curves}


def _columns(solution: Solution) -> dict[str, list[float]]:
    names = (
        "beta_selector",
        "beta_expert",
        "expected_utility",
        "objective",
        "information_selector",
        "information_experts",
        "information_total",
        "effective_experts",
        "converged",
    )
    return {name: getattr(solution, name).tolist() for name in names}


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


def summary(data: Mapping[str, Any]) -> list[dict[str, float | int]]:
    """Return, per number of experts, how many are used and the utility of few and more bits."""
    rows = []
    for curve in data["curves"]:
        bits, utility = frontier(*_arrays(curve, "information_experts", "expected_utility"))
        best = {f"{limit:g} bit": float(np.interp(limit, bits, utility)) for limit in _LIMITS}
        used = max(curve["effective_experts"])
        rows.append({"experts": curve["n_experts"], "used": used, **best})
    return rows


def _arrays(curve: Mapping[str, Any], *names: str) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(curve[name], dtype=float) for name in names)


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw utility against total information and against the experts' share, and the plane."""
    figure = Figure(figsize=(15.0, 5.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for axes in (left, middle, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#eeeeee", linewidth=0.8)
        axes.set_axisbelow(True)
    _draw_total(left, data)
    _draw_experts(middle, data)
    _draw_plane(figure, right, data)
    return figure


def _title(axes: Axes, title: str, subtitle: str) -> None:
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=26)
    axes.text(0.0, 1.03, subtitle, transform=axes.transAxes, fontsize=10, color=_GREY)


def _draw_total(axes: Axes, data: Mapping[str, Any]) -> None:
    points = []
    for colour, curve in zip(_cycle(data), data["curves"], strict=True):
        selector, experts, utility = _arrays(
            curve, "information_selector", "information_experts", "expected_utility"
        )
        axes.scatter(selector + experts, utility, s=9, color=colour, alpha=0.55, linewidth=0)
        points.append((selector + experts, utility))
    bits, best = frontier(*map(np.concatenate, zip(*points, strict=True)))
    axes.plot(bits, best, color="black", lw=1.5)
    axes.set(xlabel="I(X;M) + I(X;Y|M): bits in all", ylabel="expected utility", ylim=(0, 1.09))
    third = bits.max() / 3
    axes.annotate(
        "best possible,\nwith any number of experts",
        xy=(third, np.interp(third, bits, best)), xytext=(0.04, 0.82), textcoords="axes fraction",
        arrowprops={"arrowstyle": "-", "color": _GREY, "shrinkB": 3}, fontsize=10,
    )  # fmt: skip
    _title(
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
        bits, utility = frontier(*_arrays(curve, "information_experts", "expected_utility"))
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
    _title(
        axes,
        "… but specialists need to know less",
        "The best utility for the bits that an expert may use.",
    )


def _draw_plane(figure: Figure, axes: Axes, data: Mapping[str, Any]) -> None:
    n_groups = data["settings"]["n_groups"]
    curve = min(data["curves"], key=lambda curve: abs(curve["n_experts"] - n_groups))
    selector, experts, utility = _arrays(
        curve, "information_selector", "information_experts", "expected_utility"
    )
    reach = max((selector + experts).max(), 1e-3)
    for total in np.arange(0.5, reach, 0.5):
        axes.plot([0, total], [total, 0], color=_GREY, lw=0.7, ls=(0, (4, 4)), zorder=1)
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
    _title(
        axes,
        f"Who does the work, with {number} expert{'s' if number > 1 else ''}",
        "Along a dashed line the bits in all are equal.",
    )


def _cycle(data: Mapping[str, Any]) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(len(data["curves"]))]
