"""Pictures of mixtures, in the manner of scikit-learn's display objects."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from sklearn.utils.validation import check_array, check_is_fitted

if TYPE_CHECKING:
    from pinfactory.estimators._mixture import SpecialistMixture


class _Display:
    """Samples on a line or in a plane, and something computed on a grid around them."""

    def __init__(
        self, grid: np.ndarray, response: np.ndarray, samples: np.ndarray, names: list[str]
    ) -> None:
        self.grid, self.response, self.samples, self.names = grid, response, samples, names

    def _axes(self, ax: Axes | None) -> Axes:
        if ax is None:
            # Only here: pyplot sets up a window system, which not every user of the model wants.
            import matplotlib.pyplot as plt

            ax = plt.subplots()[1]
        self.ax_ = ax
        self.figure_ = self.ax_.figure
        self.ax_.set_xlabel(self.names[0])
        self.ax_.set_ylabel(self.names[1] if len(self.names) == 2 else "density")
        return self.ax_

    def _image(self, ax: Axes, values: np.ndarray, **options: Any) -> AxesImage:
        (left, bottom), (right, top) = self.grid[0], self.grid[-1]
        options = {"origin": "lower", "aspect": "auto", "interpolation": "bilinear"} | options
        return ax.imshow(values, extent=(left, right, bottom, top), **options)


class DensityDisplay(_Display):
    """The density over one or two features; other features are integrated out."""

    @classmethod
    def from_estimator(
        cls,
        estimator: "SpecialistMixture",
        X: Any,
        *,
        features: tuple[int, ...] = (0, 1),
        resolution: int = 200,
        margin: float = 0.1,
        ax: Axes | None = None,
        **options: Any,
    ) -> "DensityDisplay":
        """Compute the density around samples and draw it.

        Parameters
        ----------
        estimator : SpecialistMixture
            A fitted mixture.
        X : array-like of shape (n_samples, n_features)
            Samples: they set the limits of the picture and are drawn as dots.
        features : tuple of one or two int, default=(0, 1)
            The features to draw.
        resolution : int, default=200
            Points of the grid along each feature.
        margin : float, default=0.1
            How far the picture goes beyond the samples, as a share of their range.
        ax : Axes, optional
            Where to draw; by default in a new figure.
        **options
            Passed on to Matplotlib's `imshow`, or `plot` for one feature.

        Returns
        -------
        DensityDisplay
        """
        samples, grid, shape, names, chosen = _around(estimator, X, features, resolution, margin)
        density = np.exp(estimator.mixture_.marginal_log_density(grid, chosen)).reshape(shape)
        return cls(grid, density, samples, names).plot(ax=ax, **options)

    def plot(
        self, ax: Axes | None = None, *, show_samples: bool = True, **options: Any
    ) -> "DensityDisplay":
        """Draw; `options` go to Matplotlib's `imshow` or `plot`."""
        ax = self._axes(ax)
        if len(self.names) == 1:
            ax.plot(self.grid[:, 0], self.response, **options)
            if show_samples:
                ax.plot(self.samples[:, 0], np.zeros(len(self.samples)), "|k", alpha=0.3)
            return self
        self._image(ax, self.response, **{"cmap": "Blues"} | options)
        if show_samples:
            x, y = self.samples.T
            ax.scatter(x, y, s=4, c="k", alpha=0.3, linewidths=0)
        return self


class ClusterDisplay(_Display):
    """Who answers where: a colour for each expert, mixed where they share responsibility."""

    labels: np.ndarray

    @classmethod
    def from_estimator(
        cls,
        estimator: "SpecialistMixture",
        X: Any,
        *,
        features: tuple[int, ...] = (0, 1),
        resolution: int = 200,
        margin: float = 0.1,
        ax: Axes | None = None,
        **options: Any,
    ) -> "ClusterDisplay":
        """Compute the responsibilities around samples and draw them.

        With more than two features only the samples are coloured. Parameters are those of
        `DensityDisplay.from_estimator`; options go to Matplotlib's `scatter`.
        """
        samples, grid, shape, names, _ = _around(estimator, X, features, resolution, margin)
        if estimator.n_features_in_ == len(names):
            response = estimator.predict_proba(grid).reshape(*shape, -1)
        else:
            response = np.empty((*shape, 0))
        display = cls(grid, response, samples, names)
        display.labels = estimator.predict(X)
        return display.plot(ax=ax, **options)

    def plot(self, ax: Axes | None = None, **options: Any) -> "ClusterDisplay":
        """Draw; `options` go to Matplotlib's `scatter`."""
        ax = self._axes(ax)
        experts = np.arange(max(self.response.shape[-1], self.labels.max() + 1))
        palette = colormaps["turbo"](0.05 + 0.9 * experts / max(experts[-1], 1))[:, :3]
        height = np.zeros(len(self.samples))
        if len(self.names) == 1:
            ax.set_ylabel("responsibility")
            for m in range(self.response.shape[-1]):
                if self.response[:, m].max() > 0.01:
                    ax.plot(self.grid[:, 0], self.response[:, m], color=palette[m])
        else:
            height = self.samples[:, 1]
            if self.response.shape[-1]:
                self._image(ax, 0.5 + 0.5 * self.response @ palette)
        options = {"s": 6, "linewidths": 0} | options
        ax.scatter(self.samples[:, 0], height, c=palette[self.labels], **options)
        return self


def _around(
    estimator: "SpecialistMixture",
    X: Any,
    features: tuple[int, ...],
    resolution: int,
    margin: float,
) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], list[str], list[int]]:
    """Return chosen features of the samples, a grid around them, its shape, and their names."""
    check_is_fitted(estimator)
    names = getattr(estimator, "feature_names_in_", None)
    X = check_array(X)
    chosen = [f for f in features if f < X.shape[1]][:2] or [0]
    samples = X[:, chosen]
    low, high = samples.min(axis=0), samples.max(axis=0)
    room = margin * np.where(high > low, high - low, 1.0)
    ticks = np.linspace(low - room, high + room, resolution).T
    # The second feature is the slow one, as in an image.
    mesh = np.meshgrid(*ticks, indexing="xy")
    grid = np.stack([axis.ravel() for axis in mesh], axis=-1)
    labels = [f"feature {f}" if names is None else str(names[f]) for f in chosen]
    return samples, grid, mesh[0].shape, labels, chosen
