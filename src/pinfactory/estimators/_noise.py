"""The errors that experts make, from which their noise is told."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.families import Gaussian
from pinfactory.core.gaussian_experts import WIDEST
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.learning import Data

from ._committee import BLOCK
from ._table import Table

Squares = Float[np.ndarray, "m d"]
Masses = Float[np.ndarray, " m"]


def measure_errors(hierarchy: Hierarchy, table: Table) -> tuple[Squares, Masses]:
    """Return sums of each expert's squared errors and of the weight it is responsible for."""
    n_experts = len(hierarchy.available)
    square, mass = np.zeros((n_experts, table.y.shape[1])), np.zeros(n_experts)
    for start in range(0, len(table.x), BLOCK):
        block = table.take(np.arange(start, min(start + BLOCK, len(table.x)))).padded()
        more_square, more_mass = _errors(hierarchy, block)
        square += np.asarray(more_square, float)
        mass += np.asarray(more_mass, float)
    return square, mass


def root_mean_square(square: Squares, mass: Masses) -> Squares:
    """Return the deviation of each expert's errors, within what is believable."""
    # An expert that nobody asked has the noise of all of them.
    square = square + 1e-6 * square.sum(axis=0)
    variance = square / (mass + 1e-6 * mass.sum())[:, None]
    return np.clip(np.sqrt(variance), math.exp(-WIDEST), math.exp(WIDEST))


@eqx.filter_jit
def _errors(hierarchy: Hierarchy, data: Data) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    decision = jax.vmap(hierarchy)(data.x)
    assert isinstance(decision.answers, Gaussian)
    share = data.weight[:, None] * decision.responsibilities
    square = (decision.answers.mean - data.y[:, None, :]) ** 2
    return jnp.einsum("nm,nmd->md", share, square), share.sum(axis=0)
