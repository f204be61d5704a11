"""Pictures of a plane of inputs: samples, what is decided, and who decides."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from pinfactory.experiments.style import GREY, INK, PALETTE, tidy
from pinfactory.plotting import expert_colours

_CLASSES = ("#3b6fb6", "#c8553d")
_DECISION = LinearSegmentedColormap.from_list("decision", ["#a9c4e6", "#f7f7f7", "#f0b8aa"])
_WHITE = 0.45  # how much white is mixed into areas, so that samples stand out on them


def draw_samples(axes: Axes, piece: Mapping[str, Any], size: float) -> None:
    """Draw samples coloured by class, without ticks."""
    X, y = np.asarray(piece["X"]), np.asarray(piece["y"])
    for label, colour in enumerate(_CLASSES):
        mine = X[y == label]
        axes.scatter(mine[:, 0], mine[:, 1], s=size, color=colour, linewidth=0, alpha=0.9)
    first, second = piece["axes"]
    axes.set(xticks=[], yticks=[], xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))


def draw_probability(axes: Axes, piece: Mapping[str, Any]) -> None:
    """Draw the probability of the second class and where both are equally probable."""
    proba = _image(piece, "proba")
    _show(axes, piece, proba, cmap=_DECISION, vmin=0.0, vmax=1.0)
    _boundary(axes, piece)


def draw_partition(axes: Axes, piece: Mapping[str, Any]) -> None:
    """Draw p(m|x): a colour for each expert, mixed where experts share responsibility."""
    _show(axes, piece, partition_image(_image(piece, "responsibilities")))
    _boundary(axes, piece)


def partition_image(responsibilities: np.ndarray) -> np.ndarray:
    """Return p(m|x), experts along the last axis, as colours."""
    palette = _WHITE + (1.0 - _WHITE) * expert_colours(responsibilities.shape[-1])
    return np.clip(responsibilities @ palette, 0.0, 1.0)


def draw_scores(
    axes: Axes, ours: str, scores: Mapping[str, Sequence[float]], form: str = ".3f"
) -> None:
    """Draw the mean score of several models and its deviation over seeds; ours in colour."""
    for place, (name, values) in enumerate(scores.items()):
        colour = PALETTE[2] if name == ours else GREY
        mean, spread = float(np.mean(values)), float(np.std(values))
        axes.errorbar(mean, place, xerr=spread, fmt="o", color=colour, capsize=2.0)
        axes.annotate(
            f"{mean:{form}}",
            (mean, place),
            (0, 5),
            textcoords="offset points",
            ha="center",
            fontsize=9,
        )
    axes.set_yticks(range(len(scores)), list(scores), fontsize=10)
    axes.set_ylim(len(scores) - 0.4, -0.8)
    axes.margins(x=0.12)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    tidy(axes)


def _image(piece: Mapping[str, Any], name: str) -> np.ndarray:
    first, second = piece["axes"]
    values = np.asarray(piece[name])
    return values.reshape(len(second), len(first), *values.shape[1:])


def _show(axes: Axes, piece: Mapping[str, Any], image: np.ndarray, **options: Any) -> None:
    first, second = piece["axes"]
    extent = (first[0], first[-1], second[0], second[-1])
    axes.imshow(
        image, extent=extent, origin="lower", aspect="auto", interpolation="bilinear", **options
    )


def _boundary(axes: Axes, piece: Mapping[str, Any]) -> None:
    proba = _image(piece, "proba")
    if proba.min() < 0.5 < proba.max():
        axes.contour(*piece["axes"], proba, levels=[0.5], colors=INK, linewidths=1.2)
