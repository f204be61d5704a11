"""Convolutional encoders of whole images, and an autoencoder to train one with (Section 5)."""

import itertools
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.core.batches import Epochs
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.learning import Learner, State
from pinfactory.core.training import Run, train

from .convolution import Convolution, n_channels, with_channels

FILTERS = (16, 16, 4)


class Encoder(eqx.Module):
    """Strided convolutions with leaky ReLU units, each of which halves the image."""

    #: One convolution with stride 2 for every number of filters.
    convolutions: tuple[Convolution, ...]
    #: Shape of an image: (height, width) or (height, width, channels).
    shape: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def start(
        cls, shape: tuple[int, ...], filters: Sequence[int] = FILTERS, *, key: Key[Array, ""]
    ) -> "Encoder":
        """Begin with random filters."""
        pairs = list(itertools.pairwise((n_channels(shape), *filters)))
        keys = jax.random.split(key, len(pairs))
        convolutions = [
            Convolution.start(a, b, key=k, stride=2) for (a, b), k in zip(pairs, keys, strict=True)
        ]
        return cls(tuple(convolutions), shape)

    @property
    def sides(self) -> list[tuple[int, int]]:
        """Height and width of the image and after every convolution."""
        found = [(self.shape[0], self.shape[1])]
        for _ in self.convolutions:
            height, width = found[-1]
            found.append((-(-height // 2), -(-width // 2)))
        return found

    @property
    def size(self) -> int:
        """How many numbers an image is encoded in."""
        height, width = self.sides[-1]
        return height * width * self.convolutions[-1].weight.shape[-1]

    def __call__(
        self, images: Float[Array, "..."], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*n e"]:
        x = with_channels(images, self.shape)
        for convolution in self.convolutions:
            x = jax.nn.leaky_relu(convolution(x))
        return x.reshape(*x.shape[:-3], -1)


class Autoencoder(eqx.Module):
    """Three strided convolutions of 16, 16 and 4 filters, mirrored to give the image back.

    Appendix A. The code of an image of 28 × 28 pixels has 4 × 4 × 4 = 64 numbers.
    """

    encoder: Encoder
    decoder: tuple[Convolution, ...]

    @classmethod
    def start(cls, shape: tuple[int, ...] = (28, 28), *, key: Key[Array, ""]) -> "Autoencoder":
        """Begin with random filters."""
        keys = jax.random.split(key)
        pairs = list(itertools.pairwise((n_channels(shape), *FILTERS)))[::-1]
        up = [
            Convolution.start(b, a, key=k)
            for (a, b), k in zip(pairs, jax.random.split(keys[1], len(pairs)), strict=True)
        ]
        return cls(Encoder.start(shape, key=keys[0]), tuple(up))

    def reconstruct(self, images: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the images as their codes describe them."""
        code = self.encoder(images)
        *sides, last = self.encoder.sides
        x = code.reshape(*code.shape[:-1], *last, FILTERS[-1])
        for n, (convolution, side) in enumerate(zip(self.decoder, sides[::-1], strict=True)):
            x = convolution(enlarged(x, side))
            x = jax.nn.leaky_relu(x) if n + 1 < len(self.decoder) else x
        return x.reshape(images.shape)


def enlarged(images: Float[Array, "*n h w c"], side: tuple[int, int]) -> Float[Array, "*n a b c"]:
    """Repeat every pixel twice in both directions and cut to the height and width."""
    twice = jnp.repeat(jnp.repeat(images, 2, axis=-3), 2, axis=-2)
    return twice[..., : side[0], : side[1], :]


class Reconstruction(eqx.Module):
    """The mean squared error of an autoencoder, as a loss for `core.learning.Learner`."""

    def __call__(
        self, model: Autoencoder, state: State, batch: Float[Array, "..."], key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[None, dict[str, Array]]]:
        error = jnp.mean((model.reconstruct(batch) - batch) ** 2)
        return error, (None, {"objective": -error})


def train_autoencoder(
    images: Float[np.ndarray, "..."],
    *,
    key: Key[Array, ""],
    steps: int = 2000,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
) -> Autoencoder:
    """Fit an autoencoder to images, which have a leading axis."""
    start_key, run_key = jax.random.split(key)
    network = Autoencoder.start(images.shape[1:], key=start_key)
    learner = Learner(Reconstruction())
    state = learner.init(network, learning_rate=learning_rate)
    run = Run.start(run_key[None], stack([state]))
    data = jax.device_put(images.astype(np.float32))
    batches = Epochs(len(images), batch_size)
    trained = train(learner, run, data, steps=steps, batches=batches)
    return pick(trained.run.state, 0).model
