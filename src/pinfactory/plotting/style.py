"""What all pictures have in common: colours, axes, figures."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_EXPERTS = ("#E69F00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
INK, GREY = "#222222", "#777777"


class Drawn:
    """What a display has once it is drawn: the axes and their figure."""

    ax_: "Axes"
    figure_: "Figure"


def expert_colours(n_experts: int) -> Float[np.ndarray, "m 3"]:
    """Return one colour for each expert, the same in every picture."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    if n_experts <= len(_EXPERTS):
        return np.asarray([to_rgb(colour) for colour in _EXPERTS[:n_experts]])
    return colormaps["turbo"](np.linspace(0.05, 0.95, n_experts))[:, :3]


def tidy(ax: "Axes") -> None:
    """Take away the frame above and to the right."""
    ax.spines[["top", "right"]].set_visible(False)


def new_axes(size: tuple[float, float]) -> "Axes":
    """Return the axes of a new figure."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=size, layout="constrained")[1]


def figure_of(ax: "Axes") -> "Figure":
    """Return the figure that axes belong to."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure
