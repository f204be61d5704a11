"""A convolutional autoencoder, whose bottleneck tells what an image is like (Section 5)."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from pinfactory.core.batches import Epochs
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Run, train

from ._convolution import Convolution

FILTERS = (16, 16, 4)
# Numbers of the bottleneck of an image of 28 × 28 pixels.
BOTTLENECK = 4 * 4 * FILTERS[-1]


class Autoencoder(eqx.Module):
    """Three strided convolutions of 16, 16 and 4 filters, mirrored to give the image back.

    Appendix A. The bottleneck of an image of 28 × 28 pixels has 4 × 4 × 4 = 64 numbers.
    """

    encoder: tuple[Convolution, ...]
    decoder: tuple[Convolution, ...]

    @classmethod
    def start(cls, *, key: Key[Array, ""]) -> "Autoencoder":
        """Begin with random filters."""
        pairs = list(itertools.pairwise((1, *FILTERS)))
        keys = jax.random.split(key, (2, len(pairs)))
        down = [
            Convolution.start(a, b, key=k, stride=2)
            for (a, b), k in zip(pairs, keys[0], strict=True)
        ]
        up = [
            Convolution.start(b, a, key=k) for (a, b), k in zip(pairs[::-1], keys[1], strict=True)
        ]
        return cls(tuple(down), tuple(up))

    def __call__(
        self, image: Float[Array, "*n 28 28"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, "*n 64"]:
        """Return the bottleneck."""
        x = image[..., None]
        for convolution in self.encoder:
            x = jax.nn.leaky_relu(convolution(x))
        return x.reshape(*x.shape[:-3], -1)

    def reconstruct(self, image: Float[Array, "*n 28 28"]) -> Float[Array, "*n 28 28"]:
        """Return the image as the bottleneck remembers it."""
        code = self(image)
        x = code.reshape(*code.shape[:-1], 4, 4, FILTERS[-1])
        for n, (convolution, side) in enumerate(zip(self.decoder, (7, 14, 28), strict=True)):
            x = convolution(enlarged(x, side))
            x = jax.nn.leaky_relu(x) if n + 1 < len(self.decoder) else x
        return x[..., 0]


def enlarged(images: Float[Array, "*n h w c"], side: int) -> Float[Array, "*n s s c"]:
    """Repeat every pixel twice in both directions and cut to the side."""
    twice = jnp.repeat(jnp.repeat(images, 2, axis=-3), 2, axis=-2)
    return twice[..., :side, :side, :]


class _State(eqx.Module):
    network: Autoencoder
    optimiser: optax.OptState


class _Reconstruction(eqx.Module):
    """Least squares between images and what the bottleneck remembers of them."""

    rate: float = eqx.field(static=True)

    def step(
        self, key: Key[Array, ""], state: _State, batch: Float[Array, "n 28 28"]
    ) -> tuple[_State, Float[Array, ""]]:
        @eqx.filter_value_and_grad
        def loss(network: Autoencoder) -> Float[Array, ""]:
            return jnp.mean((network.reconstruct(batch) - batch) ** 2)

        value, gradient = loss(state.network)
        change, optimiser = optax.adam(self.rate).update(gradient, state.optimiser)
        return _State(eqx.apply_updates(state.network, change), optimiser), value


def train_autoencoder(
    images: Float[np.ndarray, "n 28 28"],
    *,
    key: Key[Array, ""],
    steps: int = 2000,
    batch_size: int = 64,
    learning_rate: float = 3e-3,
) -> Autoencoder:
    """Fit an autoencoder to images with ink 1 on ground 0."""
    start_key, run_key = jax.random.split(key)
    network = Autoencoder.start(key=start_key)
    optimiser = optax.adam(learning_rate).init(eqx.filter(network, eqx.is_inexact_array))
    run = Run.start(run_key[None], stack([_State(network, optimiser)]))
    data = jax.device_put(images.astype(np.float32))
    batches = Epochs(len(images), batch_size)
    trained = train(_Reconstruction(learning_rate), run, data, steps=steps, batches=batches)
    return pick(trained.run.state, 0).network
