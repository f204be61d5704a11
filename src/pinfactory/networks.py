"""Networks that selectors and experts are made of."""

import itertools
from collections.abc import Callable, Sequence
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.core.hierarchy import nth_key

Network = Callable[..., Float[Array, "..."]]
# (inputs, outputs, *, key) -> network
Factory = Callable[..., Network]


# Named functions, because jax.nn's own cannot be pickled.
def tanh(x: Array) -> Array:
    """Return the hyperbolic tangent."""
    return jnp.tanh(x)


def relu(x: Array) -> Array:
    """Return max(x, 0)."""
    return jax.nn.relu(x)


def linear(inputs: int, outputs: int, *, key: Key[Array, ""]) -> Network:
    """Build a linear map with bias, with uniform weights in ±1/√inputs.

    NumPy draws the weights: JAX would compile a program for every shape.
    """
    random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    bound = 1.0 / np.sqrt(inputs)

    def draw(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.asarray(random.uniform(-bound, bound, leaf.shape), leaf.dtype)

    return jax.tree.map(draw, _shape(inputs, outputs))


@cache
def _shape(inputs: int, outputs: int) -> eqx.nn.Linear:
    """Return a linear map without its weights; tracing one takes longer than drawing weights."""
    return eqx.filter_eval_shape(eqx.nn.Linear, inputs, outputs, key=jax.random.key(0))


def mlp(
    inputs: int,
    outputs: int,
    hidden: Sequence[int],
    activation: Callable[[Array], Array],
    *,
    key: Key[Array, ""],
) -> Network:
    """Build a multilayer perceptron with the given hidden layers."""
    sizes = [inputs, *hidden, outputs]
    layers: list[Callable[..., Array]] = []
    for n, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        layers.append(linear(fan_in, fan_out, key=nth_key(key, n)))
        layers.append(eqx.nn.Lambda(activation))
    return eqx.nn.Sequential(layers[:-1])
