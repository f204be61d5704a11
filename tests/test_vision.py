"""Convolution, pooling and normalisation against JAX's own and PyTorch's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.meta.experts import Question
from pinfactory.meta.tasks import Samples
from pinfactory.vision import (
    Autoencoder,
    Convolution,
    FourBlocks,
    OneBlock,
    average_pool,
    max_pool,
    train_autoencoder,
)
from pinfactory.vision._selection import nearest, pooled_codes

KEY = jax.random.key(0)


@eqx.filter_jit
def together(network: FourBlocks, images: jax.Array) -> jax.Array:
    """Return features normalised by the moments of these images."""
    return jax.vmap(network, axis_name="samples")(images)


@pytest.fixture
def images(rng: np.random.Generator) -> np.ndarray:
    return (rng.random((6, 28, 28)) < 0.2).astype(np.float32)


@pytest.mark.parametrize(("size", "stride", "side"), [(3, 1, 28), (3, 2, 28), (3, 2, 7), (5, 2, 9)])
def test_convolution_equals_lax(
    rng: np.random.Generator, size: int, stride: int, side: int
) -> None:
    x = rng.normal(size=(2, side, side, 3)).astype(np.float32)
    convolution = Convolution.start(3, 8, key=KEY, size=size, stride=stride)
    pad = ((size - 1) // 2, size // 2)
    expected = jax.lax.conv_general_dilated(
        x,
        convolution.weight.reshape(size, size, 3, 8),
        (stride, stride),
        (pad, pad),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(convolution(jnp.asarray(x)), expected, atol=1e-5)


def test_pooling_equals_reduce_window(rng: np.random.Generator) -> None:
    x = jnp.asarray(rng.normal(size=(2, 7, 7, 3)), jnp.float32)
    around = ((0, 0), (1, 1), (1, 1), (0, 0))
    means = jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 2, 2, 1), around) / 9
    np.testing.assert_allclose(average_pool(x, 3, 2), means, atol=1e-6)
    maxima = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    np.testing.assert_array_equal(max_pool(x), maxima)


def test_one_block_is_normalised_by_the_moments_of_the_images(images: np.ndarray) -> None:
    """Filters of an identity pooling show the normalised outputs themselves."""
    block = OneBlock.start(images, key=KEY, pool=1)
    # A shift this large keeps every output positive, so that ReLU changes nothing.
    lifted = eqx.tree_at(lambda b: b.shift, block, block.shift + 100.0)
    # Pooling moves by two pixels, so images at the four offsets show all outputs.
    plain = Convolution(block.weight, jnp.zeros(32), 3, 2)(jnp.asarray(images)[..., None])
    outputs = np.asarray(plain)
    mean, deviation = outputs.mean(axis=(0, 1, 2)), outputs.std(axis=(0, 1, 2), ddof=1)
    expected = ((outputs - mean) / np.sqrt(deviation**2 + 1e-5) + 100.0)[:, ::2, ::2]
    np.testing.assert_allclose(
        lifted.raw(jnp.asarray(images)).reshape(6, 7, 7, 32), expected, atol=1e-3
    )


def test_one_block_does_not_depend_on_other_samples(images: np.ndarray) -> None:
    block = OneBlock.start(images, key=KEY)
    ask = eqx.filter_jit(block)
    features = ask(jnp.asarray(images))
    np.testing.assert_allclose(features[2], ask(jnp.asarray(images[2])), atol=1e-5)
    assert block.size == 7 * 7 * 32
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), np.sqrt(block.size), rtol=1e-4)


def test_stored_moments_get_no_gradient(images: np.ndarray) -> None:
    block = OneBlock.start(images, key=KEY)
    slope = eqx.filter_jit(eqx.filter_grad(lambda b, x: jnp.sum(b(x) ** 3)))
    gradient = slope(block, jnp.asarray(images))
    assert not gradient.patch_mean.any()
    assert not gradient.patch_covariance.any()
    assert gradient.weight.any()


@pytest.mark.parametrize("stride", [1, 2])
def test_four_blocks_equal_torch(images: np.ndarray, stride: int) -> None:
    """Images are halved by maxima, or by the convolutions themselves."""
    torch = pytest.importorskip("torch")
    network = FourBlocks.start(key=KEY, filters=8, stride=stride)
    layers = []
    for n, block in enumerate(network.blocks):
        conv = torch.nn.Conv2d(1 if n == 0 else 8, 8, 3, padding=1, stride=stride)
        weight = np.asarray(block.convolution.weight).reshape(3, 3, -1, 8).transpose(3, 2, 0, 1)
        conv.weight.data = torch.tensor(weight.copy())
        conv.bias.data.zero_()
        layers += [conv, torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        layers += [torch.nn.MaxPool2d(2)] if stride == 1 else []
    oracle = torch.nn.Sequential(*layers).train()
    with torch.no_grad():
        expected = oracle(torch.tensor(images)[:, None]).numpy()
    got = together(network, jnp.asarray(images))
    assert got.shape == (6, network.size())
    np.testing.assert_allclose(got, expected.transpose(0, 2, 3, 1).reshape(6, -1), atol=1e-4)


def test_calibrated_blocks_repeat_the_batch_and_need_none(images: np.ndarray) -> None:
    network = FourBlocks.start(key=KEY, filters=8)
    x = jnp.asarray(images)
    calibrate = eqx.filter_jit(FourBlocks.calibrated)
    stored = calibrate(network, x)
    alone = eqx.filter_jit(lambda n, x: jax.vmap(n)(x))
    np.testing.assert_allclose(alone(stored, x), together(network, x), atol=1e-4)
    # A second calibration starts from the images, not from what was stored.
    again = calibrate(stored, x[:3])
    np.testing.assert_allclose(alone(again, x[:3]), together(network, x[:3]), atol=1e-4)


def test_autoencoder_remembers_what_images_are_like(rng: np.random.Generator) -> None:
    """Discs at random places: a mean image explains little of them, the bottleneck most."""
    centres = rng.uniform(6, 22, (400, 2, 1, 1))
    grid = np.stack(np.mgrid[:28, :28])
    images = (np.sum((grid - centres) ** 2, axis=1) < 16).astype(np.float32)
    network = train_autoencoder(images, key=KEY, steps=300)
    remembered = eqx.filter_jit(Autoencoder.reconstruct)(network, jnp.asarray(images))
    error = np.mean((np.asarray(remembered) - images) ** 2)
    assert error < 0.5 * images.var(axis=0).mean()


def test_autoencoder_gives_back_the_shape() -> None:
    network = Autoencoder.start(key=KEY)
    image = jnp.zeros((28, 28))
    assert jax.eval_shape(network, image).shape == (64,)
    assert jax.eval_shape(network.reconstruct, image).shape == (28, 28)


@pytest.mark.parametrize("shots", [1, 3])
def test_positives_together_are_given_to_the_cluster_with_the_least_squares(
    rng: np.random.Generator, shots: int
) -> None:
    """Whatever the number of shots: summed squared distances of all positives to every centre."""
    network = Autoencoder.start(key=KEY)
    code = eqx.filter_jit(network)
    centres = np.asarray(code(jnp.asarray(rng.random((5, 28, 28)), jnp.float32)))
    labels = jnp.asarray([1] * shots + [0] * shots)
    selector = nearest(network, centres)
    choose = eqx.filter_jit(lambda selector, support: selector(Question(support, support.x)))
    for _ in range(10):
        x = rng.random((2 * shots, 28, 28)).astype(np.float32)
        codes = np.asarray(code(jnp.asarray(x[:shots])))
        squares = np.sum((codes[:, None] - centres) ** 2, axis=(0, 2))
        logits = choose(selector, Samples(jnp.asarray(x), labels))
        assert int(jnp.argmax(logits)) == squares.argmin()
        mean = pooled_codes(network, x[None, :shots])[0]
        np.testing.assert_allclose(mean, codes.sum(axis=0) / shots, rtol=1e-4, atol=1e-5)
