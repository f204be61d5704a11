import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import networks

X = jnp.asarray([0.3, -1.2, 2.0])


def test_linear_is_a_linear_map_with_bias():
    network = networks.linear(3, 2, key=jax.random.key(0))
    expected = np.asarray(network.weight) @ np.asarray(X) + np.asarray(network.bias)
    np.testing.assert_allclose(network(X), expected, rtol=1e-6)


def test_mlp_puts_its_activation_between_layers_and_not_at_the_end():
    network = networks.mlp(3, 2, (5, 4), networks.tanh, key=jax.random.key(0))
    first, second, last = (layer for layer in network.layers if hasattr(layer, "weight"))
    hidden = np.tanh(np.asarray(first.weight) @ np.asarray(X) + np.asarray(first.bias))
    hidden = np.tanh(np.asarray(second.weight) @ hidden + np.asarray(second.bias))
    expected = np.asarray(last.weight) @ hidden + np.asarray(last.bias)
    np.testing.assert_allclose(network(X), expected, rtol=1e-5)
    assert [first.weight.shape, second.weight.shape, last.weight.shape] == [(5, 3), (4, 5), (2, 4)]


def test_mlp_without_hidden_layers_is_linear():
    network = networks.mlp(3, 2, (), networks.relu, key=jax.random.key(0))
    slope = jax.jacobian(network)(X)
    np.testing.assert_allclose(slope, jax.jacobian(network)(-5 * X), rtol=1e-6)


def test_layers_of_equal_shape_start_with_different_weights():
    network = networks.mlp(4, 4, (4,), networks.relu, key=jax.random.key(0))
    first, last = (layer for layer in network.layers if hasattr(layer, "weight"))
    assert not np.allclose(first.weight, last.weight)


@pytest.mark.parametrize("activation", [networks.tanh, networks.relu])
def test_networks_can_be_pickled(activation):
    network = networks.mlp(3, 2, (5,), activation, key=jax.random.key(0))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(network))(X), network(X))


def test_sizes_add_up_to_the_limit_and_not_beyond():
    with networks.limited_size(100):
        networks.reserve(6, 10)
        networks.reserve(40)
        with pytest.raises(networks.AllocationError, match=r"\(1,\)"):
            networks.reserve(1)


def test_small_arrays_and_impossible_shapes_count_for_something():
    with networks.limited_size(2 * networks.SMALLEST):
        networks.reserve(0, 10)
        networks.reserve(-5, 1000)
        with pytest.raises(networks.AllocationError):
            networks.reserve()


@pytest.mark.usefixtures("types_unchecked")
def test_a_length_that_is_a_text_is_not_repeated():
    # 10⁹ · "a" would be a gigabyte.
    with networks.limited_size(100), pytest.raises(TypeError, match="must be integers"):
        networks.reserve(10**9, "a")


def test_without_a_limit_nothing_is_counted_and_limits_nest():
    networks.reserve(10**30)
    with networks.limited_size(1000):
        with networks.limited_size(50), pytest.raises(networks.AllocationError):
            networks.reserve(60)
        networks.reserve(1000)
    networks.reserve(10**30)
