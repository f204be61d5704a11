"""Samples with missing values: what experts expect in their place, and how sure they are of it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pinfactory.core.families import LOG_2PI, NormalWishart

from .experts import Blocks, Gaps, cholesky, mean_precision_root, solve, standardised

# Numbers of the matrices that are fetched at once, one matrix for each sample and expert.
FETCHED = 2**20


class Projections(NamedTuple):
    """P, and ½|u| log 2π − ½ log|E[Λ]_uu|, of every pattern of missing values and expert."""

    matrix: Float[Array, "p m d d"]
    remainder: Float[Array, "p m"]


class Completion(NamedTuple):
    """Samples as every expert completes them.

    A missing part x_u has the best posterior r(x_u) ∝ exp E_q[log N(x | μ, Λ⁻¹)], a Gaussian of
    precision E[Λ]_uu around what an expert expects, given what is known. With RRᵀ = E[Λ] and R_u
    the rows of R that are missing, it is z = (1 − P)Rᵀ(x − ω), whatever stands for x_u, with the
    covariance P = R_uᵀ(R_u R_uᵀ)⁻¹R_u in these coordinates.
    """

    z: Float[Array, "m d n"]  # standardised samples, with their expected values
    # H[r] − ½|u| = ½|u| log 2π − ½ log|E[Λ]_uu|: with it the utility at the expected values
    # becomes log ∫ exp E_q[log N(x | μ, Λ⁻¹)] dx_u.
    remainder: Float[Array, "m n"] | float = 0.0
    found: Projections | None = None  # what they were completed with; None if nothing is missing


def projections(posterior: NormalWishart, missing: Bool[Array | np.ndarray, "p d"]) -> Projections:
    """Return what `Completion` needs of every pattern."""
    root = mean_precision_root(posterior)
    # Rows of unit length, so that rounding never makes their products indefinite.
    size = jnp.sqrt(jnp.sum(root**2, axis=-1))
    gone = jnp.asarray(missing)[:, None, :, None]
    rows = jnp.where(gone, root / size[..., None], 0.0)
    d = root.shape[-1]
    tiny = 4.0 * d * jnp.finfo(root.dtype).eps
    known = jnp.where(gone[..., 0], tiny, 1.0)
    lower = cholesky(rows @ jnp.swapaxes(rows, -1, -2) + known[..., None] * jnp.eye(d))
    half = solve(lower, rows)
    logs = jnp.log(jnp.diagonal(lower, axis1=-2, axis2=-1)) + jnp.log(size)
    remainder = jnp.sum(jnp.where(gone[..., 0], 0.5 * LOG_2PI - logs, 0.0), axis=-1)
    return Projections(jnp.swapaxes(half, -1, -2) @ half, remainder)


def completed(
    posterior: NormalWishart,
    x: Float[Array, "d n"],
    pattern: Int[Array, " n"],
    found: Projections,
) -> Completion:
    """Return samples as every expert completes them."""

    def project(sample: tuple[Array, Array]) -> Array:
        z, which = sample
        return jnp.einsum("mij,mj->mi", found.matrix[which], z)

    z = standardised(posterior, x)
    together = max(1, FETCHED // found.matrix[0].size)
    away = jax.lax.map(project, (jnp.moveaxis(z, -1, 0), pattern), batch_size=together)
    return Completion(z - jnp.moveaxis(away, 0, -1), found.remainder[pattern].T, found)


def of_block(posterior: NormalWishart, blocks: Blocks, i: Int[Array, ""]) -> Completion:
    """Return the samples of a block, standardised, with their gaps completed if there are any."""
    x = blocks.x[i]
    if blocks.gaps is None:
        return Completion(standardised(posterior, x))
    found = projections(posterior, blocks.gaps.missing[i])
    return completed(posterior, x, blocks.gaps.pattern[i], found)


def spread(
    gaps: Gaps | None,
    i: Int[Array, ""],
    found: Projections | None,
    responsibility: Float[Array, "m n"],
) -> tuple[Float[Array, "m d d"] | float, Float[Array, ""] | float]:
    """Return what the spread of missing values adds to the sums of a block.

    Σ_x p(m|x) P to the second moments, and Σ_x Σ_m p(m|x) H[r] to the utility.
    """
    if gaps is None or found is None:
        return 0.0, 0.0
    missing = gaps.missing[i]
    mass = jax.ops.segment_sum(responsibility.T, gaps.pattern[i], len(missing))
    entropy = found.remainder + 0.5 * jnp.sum(missing, axis=-1)[:, None]
    return jnp.einsum("pm,pmij->mij", mass, found.matrix), jnp.sum(mass * entropy)


def patterns(missing: Bool[np.ndarray, "n d"], size: int, n_blocks: int) -> Gaps:
    """Return the patterns of each block of samples."""
    d = missing.shape[1]
    found = [
        np.unique(missing[k * size : (k + 1) * size], axis=0, return_inverse=True)
        for k in range(-(-len(missing) // size))
    ]
    # A power of two, so that tables share compiled programs.
    most = 1 << (max(len(masks) for masks, _ in found) - 1).bit_length()
    table = np.zeros((n_blocks, most, d), bool)
    which = np.zeros((n_blocks, size), np.int32)
    for k, (masks, place) in enumerate(found):
        table[k, : len(masks)], which[k, : len(place.ravel())] = masks, place.ravel()
    return Gaps(table, which)
