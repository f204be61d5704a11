"""The errors that experts make, from which their noise is told."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.core.constraints import member_sums
from pinfactory.core.families import Gaussian
from pinfactory.core.gaussian_experts import WIDEST
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.learning import Data

from .table import Table

# From this share of rows with a value that others have too, targets count as rounded.
SHARED = 0.1
# The least deviation then, in deviations of the targets.
SUREST = 0.05

Squares = Float[np.ndarray, "m d"]
Masses = Float[np.ndarray, " m"]


def measure_errors(hierarchy: Hierarchy, table: Table, block: int) -> tuple[Squares, Masses]:
    """Return sums of each expert's squared errors and of the weight it is responsible for."""
    n_experts = math.prod(hierarchy.sizes)
    square, mass = np.zeros((n_experts, table.y.shape[1])), np.zeros(n_experts)
    for rows in table.blocks(block):
        more_square, more_mass = _errors(hierarchy, rows)
        square += np.asarray(more_square, float)
        mass += np.asarray(more_mass, float)
    return square, mass


def root_mean_square(square: Squares, mass: Masses) -> Squares:
    """Return the deviation of each expert's errors, within what is believable."""
    # An expert that nobody asked has the noise of all of them.
    square = square + 1e-6 * square.sum(axis=0)
    variance = square / (mass + 1e-6 * mass.sum())[:, None]
    return np.clip(np.sqrt(variance), math.exp(-WIDEST), math.exp(WIDEST))


def least_deviation(y: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"]) -> float:
    """Return the least deviation that answers to such targets may have.

    Where many rows share values, as rounded targets and counts do, it is half the distance between
    neighbouring values, and at least a twentieth of the targets' deviation. Zero where few do.
    """
    values, group = np.unique(y, return_inverse=True)
    mass = np.bincount(group, weights=weight)
    shared = mass[mass > 1.5 * weight.mean()].sum() / weight.sum()
    if len(values) < 2 or shared < SHARED:
        return 0.0
    mean = np.average(y, weights=weight)
    deviation = math.sqrt(np.average((y - mean) ** 2, weights=weight))
    # No wider than half the targets' deviation, as it would be where nearly all are the same.
    gap = min(float(np.median(np.diff(values))), deviation)
    return max(0.5 * gap, SUREST * deviation)


@eqx.filter_jit
def _errors(hierarchy: Hierarchy, data: Data) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    decision = jax.vmap(hierarchy)(data.x).flat
    assert isinstance(decision.answers, Gaussian)
    share = data.weight[:, None] * decision.responsibilities
    square = (decision.answers.mean - data.y[:, None, :]) ** 2
    if decision.chosen is None:
        return jnp.einsum("nm,nmd->md", share, square), share.sum(axis=0)
    none = jnp.zeros(decision.selections[0].log_probs.shape[1])
    mass = member_sums(share, decision.chosen, none)
    squares = jnp.zeros((len(none), square.shape[2]))
    return member_sums(share[..., None] * square, decision.chosen, squares), mass
