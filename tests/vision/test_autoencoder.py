"""The autoencoder: shapes, what it keeps of images, and that training lowers its error."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.vision import Autoencoder, Encoder, train_autoencoder

KEY = jax.random.key(0)


def test_autoencoder_remembers_what_images_are_like(rng: np.random.Generator) -> None:
    """Discs at random places: a mean image explains little of them, the code most."""
    centres = rng.uniform(3, 9, (100, 2, 1, 1))
    grid = np.stack(np.mgrid[:12, :12])
    images = (np.sum((grid - centres) ** 2, axis=1) < 6).astype(np.float32)
    network = train_autoencoder(images, key=KEY, steps=200, batch_size=16, learning_rate=0.01)
    remembered = eqx.filter_jit(Autoencoder.reconstruct)(network, jnp.asarray(images))
    error = np.mean((np.asarray(remembered) - images) ** 2)
    assert error < 0.5 * images.var(axis=0).mean()


@pytest.mark.parametrize(
    ("shape", "size"), [((28, 28), 64), ((28, 28, 1), 64), ((20, 13, 3), 3 * 2 * 4)]
)
def test_code_and_reconstruction_have_the_right_shapes(shape: tuple[int, ...], size: int) -> None:
    network = Autoencoder.start(shape, key=KEY)
    images = jnp.zeros((5, *shape))
    assert jax.eval_shape(network.encoder, images).shape == (5, size)
    assert network.encoder.size == size
    assert jax.eval_shape(network.reconstruct, images).shape == images.shape


def test_an_encoder_has_as_many_numbers_as_it_says() -> None:
    encoder = Encoder.start((9, 17), (8, 5), key=KEY)
    assert jax.eval_shape(encoder, jnp.zeros((9, 17))).shape == (encoder.size,) == (3 * 5 * 5,)
