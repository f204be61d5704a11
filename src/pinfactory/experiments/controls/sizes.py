"""What controls of several settings have in common: no prices, and as many parameters."""

import itertools
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PyTree

# Above this resource a price is too small to count.
_FREE = 1e6
NO_PRICES: dict[str, Any] = {"beta_selector": _FREE, "beta_expert": _FREE}


def n_parameters(model: PyTree) -> int:
    """Return how many numbers of a model can be learned."""
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))


def dense_width(inputs: int, outputs: int, wanted: int, n_layers: int) -> int:
    """Return the least width of hidden layers for a network of at least so many parameters."""

    def count(width: int) -> int:
        sizes = [inputs, *[width] * n_layers, outputs]
        return sum((before + 1) * after for before, after in itertools.pairwise(sizes))

    return next(width for width in itertools.count(1) if count(width) >= wanted)
