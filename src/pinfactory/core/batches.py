"""Which rows each step sees: every row once per epoch, in a new order each time; padded lengths.

The order is drawn by NumPy on the host. Random numbers inside a compiled loop would cost more
than the rest of a small model's step, and seconds to compile.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Int, PyTree


@runtime_checkable
class Batches(Protocol):
    """Chooses what the steps of all replicas see, as a rule rows of the data."""

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
    n_bits = (n_rows - 1).bit_length()
    word = np.uint32 if n_bits <= 16 else np.uint64
    keys = random.integers(0, np.iinfo(word).max, (n_orders, n_rows), word, endpoint=True)
    keys <<= word(n_bits)
    keys |= np.arange(n_rows, dtype=word)
    keys.sort(axis=1)
    return (keys & word(2**n_bits - 1)).astype(np.int32)


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
