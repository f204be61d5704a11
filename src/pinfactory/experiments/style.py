"""The look that the figures of all experiments share."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

# Black for one expert, then Okabe and Ito's palette, which colour-blind readers can tell apart.
PALETTE = ("#000000", "#E69F00", "#0072B2", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
INK, GREY = "#222222", "#777777"


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure that arranges its axes by itself and has no window."""
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(h_pad=0.1))


def tidy(axes: Axes) -> None:
    """Take away the frame above and to the right."""
    axes.spines[["top", "right"]].set_visible(False)


def headline(axes: Axes, title: str, subtitle: str = "") -> None:
    """Write what axes show above them, to the left, with an explanation in grey below."""
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=26 if subtitle else 8)
    if subtitle:
        axes.text(0.0, 1.03, subtitle, transform=axes.transAxes, fontsize=10, color=GREY)


def over_seeds(what: str, n_seeds: int) -> str:
    """Return what is shown of seeds, such as "median and range"; a single one has none."""
    return f"{what} over {n_seeds} seeds" if n_seeds > 1 else "one seed"


def counted(number: int, noun: str) -> str:
    """Return "1 expert", "2 experts"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
