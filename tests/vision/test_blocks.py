"""Convolution, pooling and normalisation against JAX's own and PyTorch's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.vision import Convolution, FourBlocks, OneBlock, average_pool, max_pool

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
    assert got.shape == (6, network.size)
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


@pytest.mark.parametrize("kind", [OneBlock, FourBlocks])
def test_one_channel_is_the_same_with_and_without_an_axis(images: np.ndarray, kind: type) -> None:
    grey, coloured = images, images[..., None]
    if kind is OneBlock:
        plain, other = (OneBlock.start(x, key=KEY, filters=4) for x in (grey, coloured))
    else:
        plain, other = (FourBlocks.start(x.shape[1:], key=KEY, filters=4) for x in (grey, coloured))
    np.testing.assert_allclose(
        together(plain, jnp.asarray(grey)), together(other, jnp.asarray(coloured)), atol=1e-5
    )


def test_blocks_of_colour_images_see_all_channels(rng: np.random.Generator) -> None:
    """Two images that differ in one colour only have other features."""
    colours = rng.random((4, 12, 10, 3)).astype(np.float32)
    block, four = (
        OneBlock.start(colours, key=KEY, filters=4),
        FourBlocks.start((12, 10, 3), key=KEY),
    )
    assert together(block, jnp.asarray(colours)).shape == (4, block.size) == (4, 3 * 3 * 4)
    assert together(four, jnp.asarray(colours)).shape == (4, four.size)
    changed = colours.copy()
    changed[0, ..., 2] = 0.0
    assert not np.allclose(block(jnp.asarray(colours)), block(jnp.asarray(changed)))


def test_other_shapes_are_no_images() -> None:
    with pytest.raises(ValueError, match=r"\(height, width, channels\), but got \(3,\)"):
        FourBlocks.start((3,), key=KEY)
