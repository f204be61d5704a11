"""Networks that selectors and experts are made of."""

import itertools
from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

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
    """Build a linear map with bias."""
    return eqx.nn.Linear(inputs, outputs, key=key)


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
        layers.append(eqx.nn.Linear(fan_in, fan_out, key=jax.random.fold_in(key, n)))
        layers.append(eqx.nn.Lambda(activation))
    return eqx.nn.Sequential(layers[:-1])
