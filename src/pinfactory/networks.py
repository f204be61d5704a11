"""Networks that selectors and experts are made of."""

import itertools
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

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
    """Build a linear map with bias, with uniform weights in ±1/√inputs."""
    reserve(inputs + 1, outputs)
    return draw_uniform(_shape(inputs, outputs), 1.0 / np.sqrt(inputs), key=key)


def numpy_generator(key: Key[Array, ""]) -> np.random.Generator:
    """Return what draws weights for a key: JAX would compile a program for every shape."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def draw_uniform(shapes: Any, bound: float, *, key: Key[Array, ""]) -> Any:
    """Return a module with weights within ±`bound`, from one of their shapes."""
    random = numpy_generator(key)
    return jax.device_put(
        jax.tree.map(lambda s: random.uniform(-bound, bound, s.shape).astype(s.dtype), shapes)
    )


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


# A selector sees inputs clipped to this many deviations: beyond, its choice stays the same.
FARTHEST_SELECTED = 5.0


def limit(x: Array) -> Array:
    """Return inputs within ±`FARTHEST_SELECTED`."""
    return jnp.clip(x, -FARTHEST_SELECTED, FARTHEST_SELECTED)


def limited(network: Network) -> Network:
    """Return the network behind `limit`."""
    layers = network.layers if isinstance(network, eqx.nn.Sequential) else (network,)
    return eqx.nn.Sequential([eqx.nn.Lambda(limit), *layers])


class SoftTree(eqx.Module):
    """A selector that is a binary tree of gates: logit m is the log-probability of the path to m.

    Every gate sends an input to one side with probability σ(w·x + b). The gates of a hierarchical
    mixture of experts (Jordan & Jacobs 1994).
    """

    #: The gates.
    weight: Float[Array, "gates d"]
    bias: Float[Array, " gates"]
    #: Where the way to each leaf passes a gate on its side w·x + b > 0 (1), on the other side
    #: (−1), or not at all (0).
    path: Int[Array, "leaves gates"]

    @classmethod
    def random(cls, inputs: int, outputs: int, *, key: Key[Array, ""]) -> "SoftTree":
        """Return a balanced tree with random gates."""
        gates = linear(inputs, max(outputs - 1, 1), key=key)
        assert isinstance(gates, eqx.nn.Linear)
        assert gates.bias is not None
        # Leaf n is split off the leaf that came as many before it as there were at that depth.
        parents = [n - 2 ** (n.bit_length() - 1) for n in range(1, outputs)]
        weight, path = 4.0 * np.asarray(gates.weight), split_paths(parents, outputs)
        return cls(jax.device_put(weight), gates.bias, jax.device_put(path))

    def __call__(self, x: Float[Array, " d"], *, key: Any = None) -> Float[Array, " leaves"]:
        gate = self.weight @ limit(x) + self.bias
        one, other = jax.nn.log_sigmoid(gate), jax.nn.log_sigmoid(-gate)
        return (self.path > 0).astype(gate.dtype) @ one + (self.path < 0).astype(gate.dtype) @ other

    def take_outputs(self, order: Int[Array, " leaves"]) -> "SoftTree":
        """Return the tree whose leaf m is the old leaf ``order[m]``."""
        return SoftTree(self.weight, self.bias, self.path[order])

    def temper_outputs(
        self, share: Float[Array, " leaves"], factor: Float[Array, ""]
    ) -> "SoftTree":
        """Take the log-odds of every gate, from those of the leaves' shares on, times a factor."""
        sides = [side.astype(share.dtype).T @ share for side in (self.path > 0, self.path < 0)]
        above, below = (jnp.log(jnp.maximum(side, 1e-6)) for side in sides)
        bias = factor * self.bias + (1.0 - factor) * (above - below)
        return SoftTree(factor * self.weight, bias, self.path)


def split_paths(parents: Sequence[int], n_leaves: int) -> Int[np.ndarray, "leaves gates"]:
    """Return the paths of a tree whose gate n splits leaf n + 1 off leaf ``parents[n]``."""
    path = np.zeros((n_leaves, max(n_leaves - 1, 1)), np.int32)
    for gate, parent in enumerate(parents):
        path[gate + 1] = path[parent]
        path[parent, gate], path[gate + 1, gate] = -1, 1
    return path


class Constant(eqx.Module):
    """A network that gives the same outputs to all inputs."""

    bias: Float[Array, "*experts outputs"]

    def __call__(self, x: Float[Array, " d"], *, key: Any = None) -> Float[Array, " outputs"]:
        return self.bias


class Residual(eqx.Module):
    """A linear map and a multilayer perceptron added up."""

    linear: eqx.nn.Linear
    mlp: eqx.nn.Sequential

    def __call__(self, x: Float[Array, " d"], *, key: Any = None) -> Float[Array, " outputs"]:
        return self.linear(x) + self.mlp(x)


def constant(inputs: int, outputs: int, *, key: Key[Array, ""]) -> Network:
    """Build a network of random constants."""
    bias = linear(inputs, outputs, key=key).bias  # type: ignore[attr-defined]
    return Constant(bias)


def residual_mlp(
    inputs: int, outputs: int, hidden: Sequence[int], *, key: Key[Array, ""]
) -> Network:
    """Build a linear map beside a multilayer perceptron of ReLU units."""
    straight = linear(inputs, outputs, key=nth_key(key, len(hidden) + 1))
    bent = mlp(inputs, outputs, hidden, relu, key=key)
    assert isinstance(straight, eqx.nn.Linear)
    assert isinstance(bent, eqx.nn.Sequential)
    return Residual(straight, bent)


# ------------------------------------------------------------------------ how large they may be

# Unchecked settings, such as those of a file, may need more memory than there is.
# Whatever draws the weights of a network calls `reserve` first.

# An array counts as this many numbers at least: a million empty ones cost time, too.
SMALLEST = 16


class AllocationError(ValueError):
    """Say that the settings ask for larger arrays than the limit in force allows."""


_left: ContextVar[int | None] = ContextVar("_left", default=None)


@contextmanager
def limited_size(n_numbers: int) -> Iterator[None]:
    """Let arrays of at most `n_numbers` numbers in all be reserved in the block."""
    token = _left.set(n_numbers)
    try:
        yield
    finally:
        _left.reset(token)


def reserve(*shape: int) -> None:
    """Count an array of this shape against the limit in force, if there is one.

    Raises
    ------
    AllocationError
        If the limit is exceeded.
    """
    left = _left.get()
    if left is None:
        return
    if not all(isinstance(length, numbers.Integral) for length in shape):
        # A text or list times a length would be as many copies of it.
        raise TypeError(f"the lengths of an array must be integers, but got {shape}")
    left -= max(SMALLEST, math.prod(shape))
    if left < 0:
        raise AllocationError(f"an array of shape {shape} is more than the limit allows")
    _left.set(left)
