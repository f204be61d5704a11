"""Convolution as a product of patches and weights, average pooling as a product with a matrix.

On ordinary processors the gradient of XLA's own convolution takes several times as long as that
of the same arithmetic written as one matrix product, and so do gradients of windows.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.networks import numpy_generator, reserve


def patches(images: Float[Array, "*n h w c"], size: int, stride: int) -> Float[Array, "*n a b p"]:
    """Return the square patches around every stride-th pixel, with zeros beyond the border.

    A patch is one vector: rows first, then columns, then channels.
    """
    before, after = (size - 1) // 2, size // 2
    *lead, height, width, _ = images.shape
    images = jnp.pad(images, [*[(0, 0)] * len(lead), (before, after), (before, after), (0, 0)])
    slices = [
        images[..., i : i + height : stride, j : j + width : stride, :]
        for i in range(size)
        for j in range(size)
    ]
    return jnp.concatenate(slices, axis=-1)


def n_channels(shape: tuple[int, ...]) -> int:
    """Return how many channels an image of this shape has; two axes are one channel."""
    if len(shape) not in (2, 3):
        raise ValueError(
            "images must have the shape (height, width) or (height, width, channels), but got "
            f"{shape}."
        )
    return shape[2] if len(shape) == 3 else 1


def with_channels(images: Float[Array, "..."], shape: tuple[int, ...]) -> Float[Array, "*n h w c"]:
    """Return images of this shape with an axis of channels, also where they had none."""
    return images if len(shape) == 3 else images[..., None]


class Convolution(eqx.Module):
    """A convolution with bias: as many outputs as pixels for stride 1, a quarter for stride 2."""

    weight: Float[Array, "p f"]
    bias: Float[Array, " f"]
    size: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    @classmethod
    def start(
        cls, channels: int, filters: int, *, key: Key[Array, ""], size: int = 3, stride: int = 1
    ) -> "Convolution":
        """Begin with normal weights that keep the variance through a ReLU (He et al. 2015)."""
        fan_in = size * size * channels
        reserve(fan_in + 1, filters)
        deviation = np.sqrt(2.0 / fan_in)
        weight = numpy_generator(key).normal(scale=deviation, size=(fan_in, filters))
        return cls(
            jax.device_put(weight.astype(np.float32)),
            jax.device_put(np.zeros(filters, np.float32)),
            size,
            stride,
        )

    def __call__(self, images: Float[Array, "*n h w c"]) -> Float[Array, "*n a b f"]:
        return product(patches(images, self.size, self.stride), self.weight) + self.bias


def product(rows: Float[Array, "*n p"], weight: Float[Array, "p f"]) -> Float[Array, "*n f"]:
    """Multiply, with the rows laid out in memory first: XLA would gather them in the product."""
    flat = jax.lax.optimization_barrier(rows.reshape(-1, rows.shape[-1]))
    return (flat @ weight).reshape(*rows.shape[:-1], -1)


def average_pool(
    images: Float[Array, "*n h w c"], size: int, stride: int
) -> Float[Array, "*n a b c"]:
    """Return means over windows around every stride-th pixel, with zeros beyond the border."""
    *lead, height, width, channels = images.shape
    pixels = images.reshape(*lead, height * width, channels)
    pooled = jnp.einsum("pq,...qc->...pc", window_means(height, width, size, stride), pixels)
    return pooled.reshape(*lead, -(-height // stride), -(-width // stride), channels)


def window_means(height: int, width: int, size: int, stride: int) -> Float[np.ndarray, "p q"]:
    """Return the matrix that takes means over windows of all pixels, row after row."""
    return np.kron(_windows(height, size, stride), _windows(width, size, stride))


def _windows(length: int, size: int, stride: int) -> Float[np.ndarray, "a l"]:
    """Return the matrix that takes means over windows of a line of pixels."""
    first = np.arange(0, length, stride)[:, None] - (size - 1) // 2
    place = np.arange(length)
    inside = (first <= place) & (place < first + size)
    return (inside / size).astype(np.float32)


def max_pool(images: Float[Array, "*n h w c"]) -> Float[Array, "*n a b c"]:
    """Return maxima over 2 × 2 windows; an odd last row or column is left out."""
    *lead, height, width, channels = images.shape
    height, width = height // 2, width // 2
    images = images[..., : 2 * height, : 2 * width, :]
    windows = images.reshape(*lead, height, 2, width, 2, channels)
    return windows.max(axis=(-4, -2))
