"""Convolutional blocks as feature extractors: one block (the paper's experts), or four."""

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.core.compiling import compiled_fully

from .convolution import (
    Convolution,
    max_pool,
    n_channels,
    patches,
    product,
    window_means,
    with_channels,
)

# The name of the axis over which callers vmap samples, for statistics of a batch.
SAMPLES = "samples"
EPSILON = 1e-5


class OneBlock(eqx.Module):
    """Convolution, batch normalisation, ReLU and pooling, as centred features of fixed length.

    Appendix A: 32 filters of 3 × 3 pixels with stride 2. Because the block comes first, the
    moments of the convolution's outputs follow from those of the patches of images, by w·μ and
    wᵀΣw. These are stored once. So normalisation is exact for any weights, at all times, without
    any other sample.
    """

    #: Filters, and the normalisation's own scale and shift.
    weight: Float[Array, "p f"]
    gain: Float[Array, " f"]
    shift: Float[Array, " f"]
    #: Features of an average image. Less these, and scaled to the length √f, features of different
    #: characters have products near zero.
    centre: Float[Array, " n"]
    #: μ and Σ, of training images; not trained.
    patch_mean: Float[Array, " p"]
    patch_covariance: Float[Array, "p p"]
    pool: int = eqx.field(static=True)  #: window of the average pooling, which moves by two pixels
    #: Shape of an image: (height, width) or (height, width, channels).
    shape: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def start(
        cls,
        images: Float[np.ndarray, "n ..."],
        *,
        key: Key[Array, ""],
        filters: int = 32,
        pool: int = 5,
    ) -> "OneBlock":
        """Begin with random filters; moments and centre are those of `images`."""
        shape = images.shape[1:]
        convolution = Convolution.start(n_channels(shape), filters, key=key)
        cut = np.asarray(patches(with_channels(jax.device_put(images), shape), 3, 2))
        rows = cut.reshape(-1, cut.shape[-1])
        ones = np.ones(filters, np.float32)
        block = cls(
            convolution.weight,
            jax.device_put(ones),
            jax.device_put(0.0 * ones),
            jax.device_put(np.zeros(1, np.float32)),
            jax.device_put(rows.mean(axis=0)),
            jax.device_put(np.cov(rows.T).astype(np.float32)),
            pool,
            shape,
        )
        raw = _raw(block, jax.device_put(images))
        return eqx.tree_at(lambda b: b.centre, block, jax.device_put(np.asarray(raw).mean(axis=0)))

    @property
    def size(self) -> int:
        """How many features an image has."""
        return self.centre.shape[-1]

    def active(self, images: Float[Array, "..."]) -> Float[Array, "*n a b f"]:
        """Return the outputs of convolution, normalisation and ReLU."""
        weight, shift = self._filters()
        outputs = product(patches(with_channels(images, self.shape), 3, 2), weight)
        return jax.nn.relu(outputs + shift)

    def raw(self, images: Float[Array, "..."]) -> Float[Array, "*n f"]:
        """Return the pooled outputs of the block, before centring and scaling.

        Pixels come last until they are pooled. With filters last, as in `active`, XLA would copy
        the outputs of many experts before and after every product.
        """
        weight, shift = self._filters()
        cut = patches(with_channels(images, self.shape), 3, 2)
        *lead, height, width, size = cut.shape
        pixels = jnp.swapaxes(cut.reshape(*lead, height * width, size), -1, -2)
        outputs = jax.nn.relu(weight.T @ jax.lax.optimization_barrier(pixels) + shift[:, None])
        pooled = outputs @ window_means(height, width, self.pool, 2).T
        return jnp.swapaxes(pooled, -1, -2).reshape(*lead, -1)

    def _filters(self) -> tuple[Float[Array, "p f"], Float[Array, " f"]]:
        """Return weights and biases of the convolution and its normalisation in one."""
        mean, covariance = jax.lax.stop_gradient((self.patch_mean, self.patch_covariance))
        variance = jnp.sum(self.weight * (covariance @ self.weight), axis=0)
        weight = self.weight * (self.gain / jnp.sqrt(variance + EPSILON))
        return weight, self.shift - mean @ weight

    def __call__(
        self, images: Float[Array, "..."], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*n f"]:
        features = self.raw(images) - self.centre
        square = jnp.sum(features**2, axis=-1, keepdims=True)
        return features * jnp.sqrt(self.size / (square + EPSILON))


class Moments(NamedTuple):
    """Mean and variance of every channel."""

    mean: Float[Array, " f"]
    variance: Float[Array, " f"]


class Block(eqx.Module):
    """Convolution of 3 × 3 pixels, batch normalisation, ReLU, maxima over 2 × 2 pixels.

    A convolution with stride 2 halves the image by itself, and there are no maxima. Without stored
    moments, samples are normalised by the moments of all that the caller vmaps together under the
    axis name "samples".
    """

    convolution: Convolution
    gain: Float[Array, " f"]
    shift: Float[Array, " f"]
    moments: Moments | None

    @classmethod
    def start(cls, channels: int, filters: int, *, key: Key[Array, ""], stride: int = 1) -> "Block":
        """Begin with random filters and no stored moments."""
        gain, shift = np.ones(filters, np.float32), np.zeros(filters, np.float32)
        convolution = Convolution.start(channels, filters, key=key, stride=stride)
        return cls(convolution, jax.device_put(gain), jax.device_put(shift), None)

    def __call__(self, image: Float[Array, "h w c"]) -> tuple[Float[Array, "a b f"], Moments]:
        """Return the outputs for one image, and the moments that normalised them."""
        outputs = self.convolution(image)
        if self.moments is None:
            mean = jax.lax.pmean(outputs.mean(axis=(0, 1)), SAMPLES)
            square = jax.lax.pmean(((outputs - mean) ** 2).mean(axis=(0, 1)), SAMPLES)
            moments = Moments(mean, square)
        else:
            moments = jax.lax.stop_gradient(self.moments)
        scale = self.gain / jnp.sqrt(moments.variance + EPSILON)
        active = jax.nn.relu((outputs - moments.mean) * scale + self.shift)
        return (max_pool(active) if self.convolution.stride == 1 else active), moments


class FourBlocks(eqx.Module):
    """The network of Vinyals et al. (2016): four blocks of 64 filters.

    Written for one image; the caller vmaps over samples with `axis_name="samples"`.
    """

    blocks: tuple[Block, ...]
    shape: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def start(
        cls,
        shape: tuple[int, ...] = (28, 28),
        *,
        key: Key[Array, ""],
        filters: int = 64,
        n_blocks: int = 4,
        stride: int = 1,
    ) -> "FourBlocks":
        """Begin with random filters, for images of this shape."""
        channels = [n_channels(shape)] + [filters] * (n_blocks - 1)
        keys = jax.random.split(key, n_blocks)
        blocks = [
            Block.start(c, filters, key=k, stride=stride)
            for c, k in zip(channels, keys, strict=True)
        ]
        return cls(tuple(blocks), shape)

    @property
    def size(self) -> int:
        """How many features an image has."""
        height, width = self.shape[:2]
        for block in self.blocks:
            # Maxima leave out an odd last row, a convolution with stride 2 does not.
            up = block.convolution.stride - 1
            height, width = (height + up) // 2, (width + up) // 2
        return height * width * len(self.blocks[-1].gain)

    def __call__(
        self, image: Float[Array, "..."], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, " f"]:
        return self.with_moments(image)[0]

    def with_moments(
        self, image: Float[Array, "..."]
    ) -> tuple[Float[Array, " f"], tuple[Moments, ...]]:
        """Return the features, and the moments that normalised every block."""
        outputs, moments = with_channels(image, self.shape), []
        for block in self.blocks:
            outputs, used = block(outputs)
            moments.append(used)
        return outputs.ravel(), tuple(moments)

    def calibrated(self, images: Float[Array, "n ..."]) -> "FourBlocks":
        """Store the moments of `images`: from then on no sample depends on others."""
        free = self.uncalibrated()
        _, moments = jax.vmap(free.with_moments, axis_name=SAMPLES, out_axes=(0, None))(images)
        return self._with(moments)

    def uncalibrated(self) -> "FourBlocks":
        """Return the same blocks without stored moments, as they are trained."""
        return self._with([None] * len(self.blocks))

    def _with(self, moments: Sequence[Moments | None]) -> "FourBlocks":
        blocks = [
            Block(block.convolution, block.gain, block.shift, stored)
            for block, stored in zip(self.blocks, moments, strict=True)
        ]
        return FourBlocks(tuple(blocks), self.shape)


_raw = compiled_fully(OneBlock.raw)
