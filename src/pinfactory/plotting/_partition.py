"""Who answers where: `PartitionDisplay`."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from sklearn.base import is_classifier, is_regressor
from sklearn.utils.validation import check_is_fitted

from pinfactory.formats import quantity

from ._grid import slice_of_array, slice_of_frame
from .style import GREY, INK, Drawn, expert_colours, figure_of, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WHITE = 0.5  # how much white is mixed into areas, so that samples stand out on them
LARGE = 10_000  # from here on numbers at an axis have commas
_MARKERS = (("o", "white"), ("s", INK), ("^", "#bbbbbb"), ("D", GREY), ("v", "white"))


@dataclass(kw_only=True, eq=False)
class PartitionDisplay(Drawn):
    """Which expert answers where: one or two features, coloured by the experts' p(m|x).

    Make it with `from_estimator`. Where experts share the responsibility their colours mix.

    Parameters
    ----------
    grid : list of ndarray
        One or two axes of the grid, one for each feature.
    responsibilities : ndarray of shape (..., n_experts)
        p(m|x) on the grid.
    curves : dict of ndarray
        What the committee answers on the grid: ``proba`` of a classifier; ``mean``, and for one
        feature ``std`` and ``experts``, of a regressor; nothing for a density.
    points, y : ndarray
        The samples, and what was to be answered (or None).
    owners : ndarray of shape (n_samples,)
        Index of the most responsible expert of each sample.
    shares : ndarray of shape (n_experts,)
        Share of the samples that each expert handles.
    names : list of str
        Names of the features.
    classes : ndarray or None
        Labels of a classifier.
    note : str
        What a reader should know, written above the picture.
    ticks : one or two sequences of str, or None
        Names of the categories along an axis, whose grid then counts them.
    target : str
        Name of what is predicted.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    grid: list[np.ndarray]
    responsibilities: np.ndarray
    curves: dict[str, np.ndarray]
    points: np.ndarray
    y: np.ndarray | None
    owners: np.ndarray
    shares: np.ndarray
    names: list[str]
    classes: np.ndarray | None
    note: str
    ticks: "Sequence[Sequence[str] | None]" = (None, None)
    target: str = "target"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any = None,
        *,
        features: Sequence[int | str] | None = None,
        grid_resolution: int = 200,
        ax: "Axes | None" = None,
    ) -> "PartitionDisplay":
        """Evaluate a fitted committee on a grid and draw its answers.

        Parameters
        ----------
        estimator
            A fitted classifier, regressor or mixture with `responsibilities`.
        X : array-like of shape (n_samples, n_features)
            Samples that are drawn and set the limits of the grid.
        y : array-like, optional
            Their labels or targets.
        features : one or two of int or str, optional
            Which features to show. The first two (or the only one) by default, or for a data frame
            those that the rules ask about most. The others are held at their median, or for a data
            frame with categories at the values of the row nearest to all medians.
        grid_resolution : int, default=200
            Number of points along a feature.
        ax : matplotlib Axes, optional
            Axes to draw on; a new figure by default.
        """
        check_is_fitted(estimator)
        encoding = getattr(estimator, "encoding_", None)
        slice_through = slice_of_array if encoding is None or encoding.is_plain else slice_of_frame
        given = slice_through(estimator, X, features, grid_resolution)
        responsibilities = np.asarray(estimator.responsibilities(given.asked))
        of_rows = np.asarray(estimator.responsibilities(X))
        return cls(
            responsibilities=responsibilities.reshape(*given.shape, -1),
            curves=_answers(estimator, given.asked, given.shape),
            y=None if y is None else np.asarray(y)[given.drawn],
            owners=of_rows.argmax(axis=1)[given.drawn],
            shares=of_rows.mean(axis=0),
            classes=estimator.classes_ if is_classifier(estimator) else None,
            **given.picture,
        ).plot(ax=ax)

    def plot(self, ax: "Axes | None" = None) -> "PartitionDisplay":
        """Draw, on new axes if none are given."""
        self.ax_ = new_axes((7.0, 5.0)) if ax is None else ax
        self.figure_ = figure_of(self.ax_)
        if len(self.grid) == 2:
            self._draw_plane()
        elif "mean" in self.curves and not self.ticks[0]:
            self._draw_line()
        else:
            self._draw_shares()
        for axis, names in zip((self.ax_.xaxis, self.ax_.yaxis), self.ticks, strict=False):
            if names:
                axis.set_ticks(range(len(names)), list(names))
        for axis, places in zip((self.ax_.xaxis, self.ax_.yaxis), self.grid, strict=False):
            if np.abs(places).max() >= LARGE:
                axis.set_major_formatter(lambda value, _: quantity(value))
        if self.ticks[0]:
            self.ax_.tick_params(axis="x", labelrotation=30)
        self._add_legend()
        if self.note:
            self.ax_.set_title(self.note, loc="left", fontsize=9, color=GREY)
        return self

    def _add_legend(self) -> None:
        from matplotlib.patches import Patch

        handles, _ = self.ax_.get_legend_handles_labels()
        colours = self._colours if "experts" in self.curves else self._pale
        for m, (colour, share) in enumerate(zip(colours, self.shares, strict=True)):
            # Mixtures dismiss experts for good; one that merely has little to do is shown.
            if share > 0.0:
                handles.append(Patch(color=tuple(colour), label=f"expert {m}: {share:.0%}"))
        self.ax_.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            frameon=False,
            borderaxespad=0.0,
            ncols=-(-len(handles) // 16),
        )

    @property
    def _colours(self) -> Float[np.ndarray, "m 3"]:
        return expert_colours(len(self.shares))

    @property
    def _pale(self) -> Float[np.ndarray, "m 3"]:
        return (1.0 - _WHITE) * self._colours + _WHITE

    def _draw_plane(self) -> None:
        ax, smooth = self.ax_, not any(self.ticks)
        (left, right), (low, high) = map(_limits, self.grid, self.ticks)
        ax.imshow(
            np.clip(self.responsibilities @ self._pale, 0.0, 1.0),
            extent=(left, right, low, high),
            origin="lower",
            aspect="auto",
            interpolation="bilinear" if smooth else "nearest",
        )
        if not smooth:
            pass  # lines between categories would mean nothing
        elif "proba" in self.curves:
            self._draw_boundary()
        elif "mean" in self.curves:
            self._draw_contours()
        self._draw_samples()
        ax.set(xlabel=self.names[0], ylabel=self.names[1], xlim=(left, right), ylim=(low, high))

    def _draw_boundary(self) -> None:
        """Draw where two classes are equally probable, and no third is more so."""
        proba = self.curves["proba"]
        n_classes = proba.shape[-1]
        for k in range(n_classes if n_classes > 2 else 1):
            lead = proba[..., k] - np.delete(proba, k, axis=-1).max(axis=-1)
            if lead.min() < 0 < lead.max():
                self.ax_.contour(*self.grid, lead, levels=[0.0], colors=INK, linewidths=1.8)
        self.ax_.plot([], [], color=INK, lw=1.8, label="decision boundary")

    def _draw_contours(self) -> None:
        """Draw lines of equal expected value."""
        from matplotlib.patheffects import withStroke

        style: dict[str, Any] = {"colors": INK, "linewidths": 0.8, "linestyles": "solid"}
        lines = self.ax_.contour(*self.grid, self.curves["mean"], 6, **style)
        halo = [withStroke(linewidth=2.5, foreground="white")]
        for text in self.ax_.clabel(lines, fontsize=8, fmt=quantity):
            text.set(path_effects=halo, zorder=5)
        self.ax_.plot([], [], color=INK, lw=0.8, label="expected value")

    def _draw_samples(self) -> None:
        x, y = self.points.T
        style: dict[str, Any] = {"s": 20, "edgecolor": INK, "linewidth": 0.5, "zorder": 3}
        if self.y is None:
            style |= {"s": 12, "linewidth": 0.3}
            self.ax_.scatter(x, y, c=self._colours[self.owners], **style)
        elif self.classes is None:
            values = self.y.reshape(len(self.y), -1)[:, 0]
            dots = self.ax_.scatter(x, y, c=values, cmap="Greys", **style)
            self.figure_.colorbar(
                dots, ax=self.ax_, label=self.target, location="bottom", shrink=0.5, aspect=30
            )
        else:
            for i, label in enumerate(self.classes):
                marker, face = _MARKERS[i % len(_MARKERS)]
                mine = self.y == label
                style["label"] = f"class {label}"
                self.ax_.scatter(x[mine], y[mine], marker=marker, facecolor=face, **style)

    def _draw_line(self) -> None:
        from matplotlib.collections import LineCollection
        from matplotlib.colors import to_rgba_array

        ax, (x,) = self.ax_, self.grid
        mean, std = self.curves["mean"], self.curves["std"]
        low, high = mean - 2 * std, mean + 2 * std
        ax.fill_between(x, low, high, color="#e4e4e4", lw=0, label="mean ± 2 deviations")
        if self.y is not None:
            ax.scatter(self.points[:, 0], self.y, s=9, color=GREY, alpha=0.6, linewidth=0)
            low, high = np.append(low, self.y), np.append(high, self.y)
        ax.plot(x, mean, color=INK, lw=1.2, ls=(0, (4, 2)), label="committee", zorder=4)
        for m, colour in enumerate(self._colours):
            line = np.column_stack([x, self.curves["experts"][m]])
            share = self.responsibilities[:-1, m]
            ax.add_collection(
                LineCollection(
                    list(np.stack([line[:-1], line[1:]], axis=1)),
                    colors=to_rgba_array([colour] * len(share), 0.12 + 0.88 * share),
                    linewidths=1.0 + 3.0 * share,
                    zorder=3,
                )
            )
        margin = 0.06 * (high.max() - low.min())
        ax.set(xlim=(x[0], x[-1]), ylim=(low.min() - margin, high.max() + margin))
        ax.set(xlabel=self.names[0], ylabel=self.target)
        tidy(ax)

    def _draw_shares(self) -> None:
        """Draw p(m|x) as stacked areas, and the probabilities of a classifier's classes."""
        ax, (x,) = self.ax_, self.grid
        colours = [tuple(colour) for colour in self._pale]
        if self.ticks[0]:
            below = np.cumsum(self.responsibilities, axis=1) - self.responsibilities
            for share, start, colour in zip(self.responsibilities.T, below.T, colours, strict=True):
                ax.bar(x, share, 0.9, bottom=start, color=colour)
        else:
            ax.stackplot(x, self.responsibilities.T, colors=colours, lw=0)
        if self.classes is not None:
            shown = list(enumerate(self.classes))[1 if len(self.classes) == 2 else 0 :]
            for (k, label), style in zip(shown, itertools.cycle(("-", "--", ":", "-."))):
                proba = self.curves["proba"][:, k]
                ax.plot(x, proba, color=INK, lw=1.6, ls=style, label=f"p(class {label})")
        if not self.ticks[0]:
            here = np.full(len(self.points), 0.01)
            ax.plot(self.points[:, 0], here, "|", color=INK, ms=8, mew=0.5)
        left, right = _limits(x, self.ticks[0])
        ax.set(xlim=(left, right), ylim=(0, 1), xlabel=self.names[0], ylabel="probability")


def _limits(grid: np.ndarray, ticks: Any) -> tuple[float, float]:
    """Return the ends of an axis; a category reaches half a step to either side."""
    margin = 0.5 if ticks else 0.0
    return grid[0] - margin, grid[-1] + margin


def _answers(estimator: Any, X: Any, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return what a committee answers on the grid."""
    if is_classifier(estimator):
        return {"proba": estimator.predict_proba(X).reshape(*shape, -1)}
    if not is_regressor(estimator):
        return {}
    mean, std = estimator.predict(X, return_std=True)
    if mean.ndim > 1:
        if len(shape) == 1:
            raise ValueError(
                "`features` must be two features for a regressor of several outputs, but got one."
            )
        return {}
    curves = {"mean": mean.reshape(shape)}
    if len(shape) == 1:
        curves["std"] = std
        curves["experts"] = np.stack(
            [estimator.expert_predict(X, m) for m in range(estimator.n_experts_)]
        )
    return curves
