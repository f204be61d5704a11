"""What accuracy costs: the picture of a `RateUtilityCurve`."""

from typing import TYPE_CHECKING, Any

import numpy as np

from .style import GREY, INK, expert_colours, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_curve(curve: Any, ax: "Axes | None" = None) -> "Axes":
    """Draw the score against the bits of both stages: single trainings, their means, the frontier.

    The frontier joins the settings that no other beats with fewer bits.
    """
    ax = new_axes((7.0, 4.6)) if ax is None else ax
    n_seeds = len(np.unique(curve.seed))
    bits = curve.information_selector + curve.information_experts
    mean_bits, mean_score = (v.reshape(-1, n_seeds).mean(axis=1) for v in (bits, curve.score))
    numbers = np.unique(curve.n_experts)
    colours = expert_colours(len(numbers))
    for rank, (number, colour) in enumerate(zip(numbers, colours, strict=True)):
        mine = curve.n_experts == number
        dots: dict[str, Any] = {"color": tuple(colour), "linewidth": 0}
        ax.scatter(bits[mine], curve.score[mine], s=12, alpha=0.4, **dots)
        mine = mine[::n_seeds]
        label = "1 expert" if number == 1 else f"{number} experts"
        # Where committees of several sizes do the same, the larger dots show behind the smaller.
        means: dict[str, Any] = {
            "s": 40 + 50 * rank,
            "zorder": 3 - 0.1 * rank / len(numbers),
            "label": label,
        }
        ax.scatter(mean_bits[mine], mean_score[mine], **means, **dots)
    if n_seeds > 1:
        ax.scatter([], [], s=12, color=GREY, alpha=0.6, linewidth=0, label="single trainings")
    order = np.lexsort((-mean_score, mean_bits))
    best = np.maximum.accumulate(mean_score[order])
    ends = [*mean_bits[order], mean_bits.max() * 1.03]
    ax.step(ends, [*best, best[-1]], where="post", color=INK, lw=1.4, label="best for the bits")
    ax.set(xlabel="I(X;M) + I(X;Y|M): bits for each input", ylabel=f"{curve.score_name} (held out)")
    ax.legend(frameon=False, loc="lower right")
    tidy(ax)
    return ax
