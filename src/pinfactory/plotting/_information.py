"""How many bits: `InformationDisplay`."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sklearn.utils.validation import check_is_fitted

from .style import GREY, INK, expert_colours, figure_of, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Below this share an expert is idle, and its bits mean little.
_IDLE = 0.005


class InformationDisplay:
    """How many bits a committee or mixture processes, and how its experts share the work.

    Make it with `from_estimator`.

    Parameters
    ----------
    information : Information
        As in the attribute `information_` of every learner.

    Attributes
    ----------
    axes_ : tuple of three matplotlib Axes
        Bits of the stages; share of each expert; bits of each expert.
    figure_ : matplotlib Figure
    """

    axes_: "tuple[Axes, Axes, Axes]"
    figure_: "Figure"

    def __init__(self, *, information: Any) -> None:
        self.information = information

    @classmethod
    def from_estimator(cls, estimator: Any, *, ax: "Axes | None" = None) -> "InformationDisplay":
        """Draw the information a fitted committee processes.

        Parameters
        ----------
        estimator
            A fitted committee.
        ax : matplotlib Axes, optional
            A subplot whose place the picture takes; a new figure by default.
        """
        check_is_fitted(estimator)
        return cls(information=estimator.information_).plot(ax=ax)

    def plot(self, ax: "Axes | None" = None) -> "InformationDisplay":
        """Draw, on a new figure if no axes are given."""
        n_experts = len(self.information.responsibility)
        if ax is None:
            ax = new_axes((10.0, 1.6 + 0.32 * min(max(n_experts, 4), 24)))
        self.figure_, place = figure_of(ax), ax.get_subplotspec()
        if place is None:
            raise ValueError("`ax` must be a subplot, but got axes with a place of their own.")
        ax.set_axis_off()
        cells = place.subgridspec(1, 3, width_ratios=(1.25, 1.0, 1.0))
        stages, shares, bits = (self.figure_.add_subplot(cells[0, i]) for i in range(3))
        self.axes_ = (stages, shares, bits)
        self._draw_stages(stages)
        self._draw_experts(shares, bits)
        return self

    def _draw_stages(self, ax: "Axes") -> None:
        told = self.information
        stages = {"selector\nI(X;M)": told.selector, "experts\nI(X;Y|M)": told.experts}
        if not math.isnan(told.overall):
            stages["overall\nI(X;Y)"] = told.overall
        values = list(stages.values())
        colours = [INK, INK, GREY][: len(values)]
        _bars(ax, values, colours, [f"{value:.2f}" for value in values])
        ax.set_yticks(range(len(values)), list(stages))
        ax.set_xlabel("bits for each input")
        ax.set_title("Each stage", loc="left", fontweight="bold")

    def _draw_experts(self, shares: "Axes", bits: "Axes") -> None:
        measured = self.information
        n_experts = len(measured.responsibility)
        colours = [tuple(colour) for colour in expert_colours(n_experts)]
        idle = measured.responsibility < _IDLE
        faded = [(*c, 0.25) if none else c for c, none in zip(colours, idle, strict=True)]
        pairs = zip(measured.per_expert, idle, strict=True)
        notes = [f"{value:.2f}" + " (idle)" * bool(none) for value, none in pairs]
        percent = 100.0 * measured.responsibility
        _bars(shares, percent, colours, [f"{value:.0f} %" for value in percent])
        _bars(bits, measured.per_expert, faded, notes)
        shares.set_yticks(range(n_experts), [f"expert {m}" for m in range(n_experts)])
        bits.set_yticks([])
        shares.set_xlabel("share of the inputs p(m), %")
        bits.set_xlabel("bits for each input it handles")
        shares.set_title(
            f"Each expert (as {measured.effective_experts:.1f} equally busy ones)",
            loc="left",
            fontweight="bold",
        )


def _bars(ax: "Axes", values: Any, colours: Sequence[Any], labels: Sequence[str]) -> None:
    """Draw labelled horizontal bars from top to bottom."""
    bars = ax.barh(range(len(values)), values, color=colours, height=0.7)
    ax.bar_label(bars, labels, padding=4, color=INK)
    ax.invert_yaxis()
    ax.set_xlim(0.0, max(1.3 * max(values), 1e-3))
    ax.tick_params(axis="y", length=0)
    tidy(ax)
