"""How likely is what: `DensityDisplay`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_array, check_is_fitted

from pinfactory.tables import as_frame

from ._grid import feature_indices, feature_names, reach
from .style import GREY, INK, Drawn, figure_of, new_axes, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(kw_only=True, eq=False)
class DensityDisplay(Drawn):
    """The density over one or two features; the other features are integrated out.

    Make it with `from_estimator`.

    Parameters
    ----------
    grid : list of ndarray
        One or two axes of the grid, one for each feature.
    density : ndarray
        The density on the grid; the first feature runs along the last axis, as in an image.
    points : ndarray of shape (n_samples, 1 or 2)
        The samples.
    names : list of str
        Names of the features.
    note : str
        What a reader should know, written above the picture.

    Attributes
    ----------
    ax_ : matplotlib Axes
    figure_ : matplotlib Figure
    """

    grid: list[np.ndarray]
    density: np.ndarray
    points: np.ndarray
    names: list[str]
    note: str

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        features: Sequence[int | str] | None = None,
        grid_resolution: int = 200,
        ax: "Axes | None" = None,
    ) -> "DensityDisplay":
        """Evaluate a fitted mixture on a grid and draw its density.

        Parameters
        ----------
        estimator : SpecialistMixture
            A fitted mixture.
        X : array-like of shape (n_samples, n_features)
            Samples that are drawn and set the limits of the grid.
        features : one or two of int or str, optional
            Which features to show; the first two (or the only one) by default. Those of a data
            frame have the names of `encoding_.features`.
        grid_resolution : int, default=200
            Number of points along a feature.
        ax : matplotlib Axes, optional
            Axes to draw on; a new figure by default.
        """
        encoding = getattr(estimator, "encoding_", None)
        check_is_fitted(estimator)
        if encoding is None or as_frame(X) is None:
            columns = check_array(X, dtype=float)
        else:
            columns = encoding.transform(X)
        names = feature_names(estimator, columns.shape[1])
        chosen = feature_indices(features, names)
        axes = [reach(columns[:, i], grid_resolution) for i in chosen]
        mesh = np.meshgrid(*axes)
        asked = np.column_stack([values.ravel() for values in mesh])
        density = np.exp(estimator.state_.marginal_log_density(asked, chosen))
        return cls(
            grid=axes,
            density=density.reshape(mesh[0].shape),
            points=columns[:, chosen],
            names=[names[i] for i in chosen],
            note="the other features integrated out" if len(chosen) < len(names) else "",
        ).plot(ax=ax)

    def plot(self, ax: "Axes | None" = None) -> "DensityDisplay":
        """Draw, on new axes if none are given."""
        self.ax_ = ax = new_axes((6.0, 4.6)) if ax is None else ax
        self.figure_ = figure_of(ax)
        first, x = self.grid[0], self.points[:, 0]
        if len(self.grid) == 1:
            ax.fill_between(first, self.density, color="#dbe9f6", lw=0)
            ax.plot(first, self.density, color=INK, lw=1.4)
            ax.plot(x, np.zeros(len(x)), "|", color=INK, ms=8, mew=0.5, alpha=0.5)
            ax.set(xlabel=self.names[0], ylabel="density", xlim=(first[0], first[-1]))
            ax.set_ylim(bottom=0.0)
            tidy(ax)
        else:
            second = self.grid[1]
            image = ax.imshow(
                self.density,
                extent=(first[0], first[-1], second[0], second[-1]),
                origin="lower",
                aspect="auto",
                interpolation="bilinear",
                cmap="Blues",
                vmin=0.0,
            )
            self.figure_.colorbar(image, ax=ax, label="density")
            ax.scatter(x, self.points[:, 1], color=INK, s=5, alpha=0.4, linewidth=0)
            ax.set(xlabel=self.names[0], ylabel=self.names[1])
        if self.note:
            ax.set_title(self.note, loc="left", fontsize=9, color=GREY)
        return self
