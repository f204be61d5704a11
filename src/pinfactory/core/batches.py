"""Which rows each step sees, and which devices compute them.

Every row is seen once per epoch, in a new order each time. The order is drawn by NumPy on the
host. Random numbers inside a compiled loop would cost more than the rest of a small model's step,
and seconds to compile.

Several devices share the rows of a step: all hold the same parameters and all rows. A step's
gradient, priors and measurements are sums over its rows, which XLA adds up across devices, and
across processes.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int, PyTree, UInt

Tree = TypeVar("Tree", bound=PyTree)


@runtime_checkable
class Batches(Protocol):
    """Chooses the batches of all replicas, usually as row numbers."""

    def __call__(self, seeds: Sequence[Sequence[int]], start: int, n_steps: int) -> PyTree:
        """Return the choices for steps `start` to `start + n_steps`; the same for the same seeds.

        Arrays with leading axes of replicas and steps; for plain data one array of row numbers.
        """
        ...


class Source(eqx.Module):
    """Data that makes a batch from what `Batches` chose, instead of being indexed by it."""

    @abstractmethod
    def batch(self, chosen: PyTree[Array]) -> Any:
        """Return the batch of one step; pure, and compiled into the training loop."""


def take(data: PyTree, chosen: PyTree[Array]) -> Any:
    """Return the batch that was chosen: by the source itself, or those rows of every array."""
    if isinstance(data, Source):
        return data.batch(chosen)
    # Without the promise every number is looked at first, whether it counts from the end.
    return jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="promise_in_bounds"), data)


class Epochs:
    """Batches drawn without replacement, from one epoch into the next.

    The rows of a step depend on its number and the replica's seed alone, so that neither a
    resume nor the length of a chunk changes them.
    """

    # Short epochs are drawn together: starting a generator costs as much as a thousand rows.
    BLOCK = 16_384

    def __init__(self, n_rows: int, batch_size: int) -> None:
        self.n_rows, self.batch_size = n_rows, batch_size
        self._epochs = -(-self.BLOCK // n_rows)
        self._drawn: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}

    def __call__(
        self, seeds: Sequence[Sequence[int]], start: int, n_steps: int
    ) -> Int[np.ndarray, "replicas steps batch"]:
        first, last = start * self.batch_size, (start + n_steps) * self.batch_size
        length = self._epochs * self.n_rows
        blocks = range(first // length, -(-last // length))
        wanted = slice(first - blocks[0] * length, last - blocks[0] * length)
        rows = [np.concatenate([self._block(tuple(s), b) for b in blocks])[wanted] for s in seeds]
        return np.stack(rows).reshape(len(seeds), n_steps, self.batch_size)

    def _block(self, seed: tuple[int, ...], block: int) -> Int[np.ndarray, " rows"]:
        """Return some epochs one after the other; the last block drawn is remembered."""
        number, rows = self._drawn.get(seed, (-1, np.empty(0)))
        if number != block:
            random = np.random.default_rng([*seed, block])
            rows = shuffled(random, self._epochs, self.n_rows).ravel()
            self._drawn[seed] = (block, rows)
        return rows


def shuffled(
    random: np.random.Generator, n_orders: int, n_rows: int
) -> Int[np.ndarray, "n_orders n_rows"]:
    """Return the numbers of all rows in some random orders.

    Row numbers are sorted by random bits in front of them, in less than half the time of
    `Generator.permuted`. Two rows whose bits are equal, 1 pair of 65,536 or fewer, stay in order.
    """
    word = np.uint32 if n_rows <= 2**16 else np.uint64
    keys = random.integers(0, np.iinfo(word).max, (n_orders, n_rows), word, endpoint=True)
    keys <<= word((n_rows - 1).bit_length())
    return sorted_rows(keys).astype(np.int32)


def sorted_rows(keys: UInt[np.ndarray, "*orders n_rows"]) -> UInt[np.ndarray, "*orders n_rows"]:
    """Return row numbers in the order of keys, but for the lowest bits, which hold the number.

    It takes a third of the time of `argsort`. Rows whose other bits are equal stay in order.
    """
    n_rows, word = keys.shape[-1], keys.dtype.type
    numbers = word(2 ** (n_rows - 1).bit_length() - 1)
    keys = (keys & ~numbers) | np.arange(n_rows, dtype=word)
    keys.sort(axis=-1)
    return keys & numbers


# Odd 64-bit multipliers (the fractional digits of the golden ratio, and of MurmurHash's mixer).
SPREAD, MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xFF51AFD7ED558CCD)


@np.errstate(over="ignore")
def hash_rows(columns: Iterable[np.ndarray], n_rows: int) -> np.ndarray:
    """Return a hash of what each row of a table holds, given column by column."""
    code = np.zeros(n_rows, np.uint64)
    for column in columns:
        # Adding zero makes −0.0 and 0.0 one number.
        code = hashed(code, (column.astype(np.float64, copy=False) + 0.0).view(np.uint64))
    return code


@np.errstate(over="ignore")
def hashed(code: np.ndarray, bits: np.ndarray) -> np.ndarray:
    """Return hashes of rows with one more column, given as 64-bit numbers."""
    code = code ^ bits
    # In place: new memory takes longer than the arithmetic.
    code *= SPREAD
    code ^= code >> np.uint64(32)
    return code


def padded_length(n_rows: int) -> int:
    """Return the next of the lengths 64, 96, 128, 192, 256, …: at most half as long again."""
    length = 64
    while length < n_rows:
        length = length * 3 // 2 if length & (length - 1) == 0 else length * 4 // 3
    return length


def padded(array: np.ndarray, length: int) -> np.ndarray:
    """Append rows of zeros."""
    if len(array) == length:
        return array
    result = np.zeros((length, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    return result


# ---------------------------------------------------------------------------------------- devices

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
