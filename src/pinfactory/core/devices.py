"""Training on several devices: each computes a part of the rows of every step.

All devices hold the same parameters and all rows. A step's gradient, priors and measurements are
sums over its rows, which XLA adds up across devices, and across processes.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PyTree

Tree = TypeVar("Tree", bound=PyTree)

_mesh: ContextVar[Mesh | None] = ContextVar("_mesh", default=None)


@contextmanager
def data_parallel(devices: Sequence[jax.Device] | None = None) -> Iterator[None]:
    """Share the rows of every training step among devices in the block.

    What is learned is the same as on one device, up to rounding. Worth it where a step takes
    milliseconds. With `jax.distributed` every process has to train with the same data and settings.

    Parameters
    ----------
    devices
        Devices of JAX; by default all, those of other processes included.
    """
    chosen = jax.devices() if devices is None else list(devices)
    if not chosen:
        raise ValueError("`devices` must hold at least one device, but got none.")
    token = _mesh.set(Mesh(np.asarray(chosen), ("rows",)))
    try:
        yield
    finally:
        _mesh.reset(token)


def current_mesh() -> Mesh | None:
    """Return the devices that share rows here, or None if there is no more than one."""
    mesh = _mesh.get()
    return mesh if mesh is not None and mesh.size > 1 else None


def replicate(mesh: Mesh, tree: Tree) -> Tree:
    """Return the arrays of a pytree on all devices.

    Raises
    ------
    ValueError
        If processes hold different numbers: each would learn something else.
    """
    sharding = NamedSharding(mesh, PartitionSpec())
    if jax.process_count() > 1:
        _check_equal(tree)

    def place(host: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])

    return _through_host(place, tree)


def localise(tree: Tree) -> Tree:
    """Return what `replicate` put on all devices as ordinary arrays of this process."""
    return _through_host(jax.device_put, tree)


def share_rows(mesh: Mesh | None, batch: Tree) -> Tree:
    """Let each device compute a part of the first axis of all arrays, inside a compiled function.

    The parts may differ in length: XLA pads them.
    """
    if mesh is None:
        return batch
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), batch)


def keep_replicated(mesh: Mesh | None, tree: Tree) -> Tree:
    """Let every device have all of these arrays, inside a compiled function."""
    if mesh is None:
        return tree
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, sharding), tree)


def _through_host(place: Callable[[np.ndarray], jax.Array], tree: Tree) -> Tree:
    """Place every array of a pytree anew; keys as the numbers that they stand for."""

    def one(leaf: Any) -> Any:
        if not eqx.is_array(leaf):
            return leaf
        placed = place(_numbers(leaf))
        if not _is_key(leaf):
            return placed
        return jax.random.wrap_key_data(placed, impl=jax.random.key_impl(leaf))

    return jax.tree.map(one, tree)


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _numbers(leaf: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _check_equal(tree: PyTree) -> None:
    """Raise a ValueError unless all processes hold the same numbers."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)):
        digest.update(np.ascontiguousarray(_numbers(leaf)).data)
    own = np.frombuffer(digest.digest(), np.uint8)
    if not (np.asarray(multihost_utils.process_allgather(own)) == own).all():
        raise ValueError(
            "All processes must train with the same data, settings and seed, but got different "
            "ones: give each the same arrays, and an integer as `random_state` or `seed`."
        )
