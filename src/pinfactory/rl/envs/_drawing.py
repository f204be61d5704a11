"""Pictures of poles and carts, painted with NumPy alone."""

from collections.abc import Sequence

import numpy as np

Color = tuple[int, int, int]

PAPER: Color = (250, 250, 248)
INK: Color = (58, 64, 74)
RAIL: Color = (190, 195, 202)
POLES: tuple[Color, ...] = ((0, 114, 178), (213, 94, 0))


class Canvas:
    """A square picture of the part of a plane that lies within ± `reach` of a point.

    Parameters
    ----------
    size
        Width and height in pixels.
    center
        The point in the middle.
    reach
        Half the width of what is seen.
    """

    def __init__(self, size: int, center: tuple[float, float], reach: float) -> None:
        self.pixels = np.full((size, size, 3), PAPER, np.uint8)
        self._scale = size / (2.0 * reach)
        self._origin = np.array([center[0] - reach, center[1] + reach])

    def line(
        self, start: tuple[float, float], end: tuple[float, float], width: float, color: Color
    ) -> None:
        """Paint a line with round ends, its edge smoothed over one pixel."""
        a, b = self._to_pixels(start), self._to_pixels(end)
        radius = 0.5 * width * self._scale
        size = self.pixels.shape[0]
        low = np.clip(np.floor(np.minimum(a, b) - radius - 1.0), 0, size).astype(int)
        high = np.clip(np.ceil(np.maximum(a, b) + radius + 2.0), 0, size).astype(int)
        x = np.arange(low[0], high[0])[None, :] + 0.5 - a[0]
        y = np.arange(low[1], high[1])[:, None] + 0.5 - a[1]
        along = b - a
        share = np.clip((x * along[0] + y * along[1]) / max(along @ along, 1e-9), 0.0, 1.0)
        distance = np.hypot(x - share * along[0], y - share * along[1])
        cover = np.clip(radius - distance + 0.5, 0.0, 1.0)[..., None]
        part = self.pixels[low[1] : high[1], low[0] : high[0]]
        part[:] = np.rint(part + cover * (np.array(color) - part)).astype(np.uint8)

    def dot(self, center: tuple[float, float], width: float, color: Color) -> None:
        """Paint a disc."""
        self.line(center, center, width, color)

    def _to_pixels(self, point: tuple[float, float]) -> np.ndarray:
        offset = (np.array(point) - self._origin) * self._scale
        return np.array([offset[0], -offset[1]])


def draw_poles(
    canvas: Canvas,
    hinge: tuple[float, float],
    angles: Sequence[float],
    lengths: np.ndarray,
    width: float,
) -> None:
    """Paint poles hung one on the other; angles are from upright."""
    for angle, length, color in zip(angles, lengths, POLES, strict=False):
        end = (hinge[0] + length * np.sin(angle), hinge[1] + length * np.cos(angle))
        canvas.line(hinge, end, width, color)
        canvas.dot(hinge, 0.5 * width, PAPER)
        hinge = end


def draw_cart(
    size: int,
    cart: float,
    rail: np.ndarray,
    angles: Sequence[float],
    lengths: np.ndarray,
) -> np.ndarray:
    """Paint a cart on its rail with poles on it."""
    low, high = float(rail[0]), float(rail[1])
    tall = float(np.sum(lengths))
    unit = 0.08 * max(0.5 * (high - low), tall)
    reach = max(0.5 * (high - low) + 2.2 * unit, tall + unit)
    canvas = Canvas(size, (0.5 * (low + high), 0.0), reach)

    # The cart is 2.5 units wide and just touches a stop when its middle is at the end of the rail.
    left, right = low - 1.4 * unit, high + 1.4 * unit
    canvas.line((left, 0.0), (right, 0.0), 0.25 * unit, RAIL)
    for stop in (left, right):
        canvas.line((stop, -unit), (stop, unit), 0.3 * unit, RAIL)
    canvas.line((cart - 0.6 * unit, 0.0), (cart + 0.6 * unit, 0.0), 1.3 * unit, INK)
    draw_poles(canvas, (cart, 0.0), angles, lengths, 0.55 * unit)
    return canvas.pixels
