"""Recurrent networks against plain loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.recurrent import GRU, IndRNN, SequenceNetwork


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def test_indrnn_network_equals_a_plain_loop(rng: np.random.Generator) -> None:
    network = SequenceNetwork.create("indrnn", 4, 3, 200, key=jax.random.key(0))
    xs = rng.normal(size=(5, 4))
    assert isinstance(network.cell, IndRNN)
    weight, bias = np.asarray(network.cell.inputs.weight), np.asarray(network.cell.inputs.bias)
    memory = np.asarray(network.cell.memory)
    hidden = np.zeros(200)
    for x in xs:
        hidden = np.maximum(weight @ x + bias + memory * hidden, 0.0)
    expected = np.asarray(network.readout.weight) @ hidden + np.asarray(network.readout.bias)
    np.testing.assert_allclose(network(jnp.asarray(xs, jnp.float32)), expected, rtol=2e-4)


def test_units_of_an_indrnn_remember_themselves_alone(rng: np.random.Generator) -> None:
    cell = IndRNN.create(4, 6, key=jax.random.key(1))
    x = jnp.asarray(rng.normal(size=4), jnp.float32)
    jacobian = jax.jacobian(lambda h: cell(x, h))(jnp.ones(6))
    assert np.count_nonzero(jacobian - np.diag(np.diag(jacobian))) == 0


def test_gru_network_equals_the_published_equations(rng: np.random.Generator) -> None:
    network = SequenceNetwork.create("gru", 3, 2, 7, key=jax.random.key(0))
    assert isinstance(network.cell, GRU)
    cell = network.cell.cell
    w, u = np.asarray(cell.weight_ih), np.asarray(cell.weight_hh)
    b, b_n = np.asarray(cell.bias), np.asarray(cell.bias_n)
    xs = rng.normal(size=(4, 3))
    hidden = np.zeros(7)
    for x in xs:
        of_input, of_memory = np.split(w @ x + b, 3), np.split(u @ hidden, 3)
        reset = sigmoid(of_input[0] + of_memory[0])
        update = sigmoid(of_input[1] + of_memory[1])
        new = np.tanh(of_input[2] + reset * (of_memory[2] + b_n))
        hidden = new + update * (hidden - new)
    expected = np.asarray(network.readout.weight) @ hidden + np.asarray(network.readout.bias)
    np.testing.assert_allclose(network(jnp.asarray(xs, jnp.float32)), expected, rtol=2e-4)


def test_the_order_of_a_sequence_matters(rng: np.random.Generator) -> None:
    network = SequenceNetwork.create("indrnn", 2, 1, 16, key=jax.random.key(0))
    xs = jnp.asarray(rng.normal(size=(5, 2)), jnp.float32)
    assert not np.allclose(network(xs), network(xs[::-1]))


def test_unknown_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="must be 'indrnn' or 'gru', but got 'lstm'"):
        SequenceNetwork.create("lstm", 1, 1, 1, key=jax.random.key(0))
