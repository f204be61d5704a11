"""Samples that do not fit into memory: passes over chunks, whose sums add up."""

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from pinfactory.core.batches import hash_rows
from pinfactory.core.compiling import bounded

from .ascent import Ascent, Sums, conditional_entropy, iterated, responsibility_sums
from .experts import (
    Blocks,
    Experts,
    HostStatistics,
    Hyperparameters,
    fit_experts,
    join,
)
from .merging import MergeEffects, Pairs, merge_effects
from .samples import (
    BLOCK,
    GROWTH,
    MAX_ROWS,
    StoredSamples,
    Whitening,
    canonical_codes,
    in_blocks,
)

# Bytes of samples that are kept in memory: an ascent that needs no more reads none again.
MOST_BYTES = 512 * 2**20
_Result = TypeVar("_Result")


@runtime_checkable
class Chunks(Protocol):
    """Rows in parts, of which a few fit into memory."""

    def reduce(
        self,
        function: Callable[[np.ndarray], _Result],
        join: Callable[[_Result, _Result], _Result],
    ) -> _Result:
        """Return what a function gives for all chunks, joined two by two."""
        ...


class Lowest(NamedTuple):
    """The rows that come first in canonical order, in parts that are put together in the end."""

    codes: list[np.ndarray]  # what rows are sorted by
    counts: list[np.ndarray]  # how often a row is there
    columns: list[np.ndarray]  # the rows as columns


class Ordered(NamedTuple):
    """Different rows: as columns in any order, their places in canonical order, and counts."""

    columns: np.ndarray
    place: np.ndarray
    counts: np.ndarray

    def blocks(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return them in canonical order: blocks, weights, and how many blocks there are."""
        return in_blocks(len(self.columns), self.counts, lambda k: self.columns[:, self.place[k]])


def stream(
    chunks: Chunks, whitening: Whitening | None = None
) -> "tuple[Whitening, StoredSamples | StreamedSamples, float]":
    """Return coordinates, the samples in them, and the number of samples.

    The coordinates and the samples that are kept are those that a fit in memory begins with.
    """
    moments = chunks.reduce(_moments, join)
    n = int(moments.mass[0])
    if n < 2:
        raise ValueError(f"X must have at least 2 samples, but got {n}.")
    deviation = np.sqrt(np.diagonal(moments.scatter[0]) / n)
    codes_of = partial(canonical_codes, mean=moments.mean[0], deviation=deviation)
    first_rows = partial(_first_rows, chunks, n, codes_of)
    if whitening is None:
        columns, place, counts = first_rows(np.transpose, MAX_ROWS)[0]
        whitening = Whitening.of(columns.T, (place, counts))
    n_blocks, kept = -(-n // BLOCK), MOST_BYTES // (4 * len(deviation) * BLOCK)
    if kept < n_blocks:
        # As many as one of the parts that the data are searched in, which grow by this factor.
        kept = max(GROWTH**k for k in range(30) if GROWTH**k <= max(kept, 1))
    rows, complete = first_rows(whitening.columns, kept * BLOCK)
    blocks = rows.blocks()
    del rows  # before the device has a copy of its own
    samples = StoredSamples(Blocks(*jax.device_put(blocks[:2])), blocks[2])
    if complete:
        return whitening, samples, float(n)
    return whitening, StreamedSamples(samples, n_blocks, n, whitening, chunks), float(n)


def _moments(x: np.ndarray) -> HostStatistics:
    centred = x - (mean := x[0] + (x - x[0]).mean(axis=0))
    return HostStatistics(np.array([float(len(x))]), mean[None], (centred.T @ centred)[None])


def _first_rows(
    chunks: Chunks,
    n: int,
    codes_of: Callable[[np.ndarray], np.ndarray],
    columns_of: Callable[[np.ndarray], np.ndarray],
    n_wanted: int,
) -> tuple[Ordered, bool]:
    """Return the first different rows of n in the order of codes, and whether these are all.

    Hashes are spread evenly, so that a limit finds nearly as many as wanted in one pass.
    """
    share = (n_wanted + 6.0 * math.sqrt(n_wanted) + 64.0) / n
    while True:
        complete = share >= 1.0
        limit = ~np.uint64(0) if complete else np.uint64(share * 2.0**64)
        pick = partial(_pick, codes_of, columns_of, limit, n_wanted)
        found = _in_order(chunks.reduce(pick, partial(_lower, n_wanted)))
        if complete or len(found.place) >= n_wanted:
            break
        share *= 8.0
    complete &= len(found.place) <= n_wanted
    return Ordered(found.columns, found.place[:n_wanted], found.counts[:n_wanted]), complete


def _pick(
    codes_of: Callable[[np.ndarray], np.ndarray],
    columns_of: Callable[[np.ndarray], np.ndarray],
    limit: np.uint64,
    n_wanted: int,
    x: np.ndarray,
) -> Lowest:
    codes = codes_of(x)
    chosen = np.flatnonzero(codes <= limit)
    x, codes = x[chosen], codes[chosen]
    picked = Lowest([codes], [np.ones(len(x), np.float32)], [columns_of(x)])
    return _lower(n_wanted, picked, Lowest([], [], []))


def _lower(n_wanted: int, a: Lowest, b: Lowest) -> Lowest:
    """Join rows; equal ones only if there are more than needed."""
    both = Lowest(*(one + other for one, other in zip(a, b, strict=True)))
    if sum(map(len, both.codes)) <= 2 * n_wanted + BLOCK:
        return both
    codes = np.concatenate(both.codes)
    columns, place, counts = _in_order(both)
    kept = place[: n_wanted + 1]  # one more than needed tells that there are more
    return Lowest([codes[kept]], [counts[: len(kept)]], [columns[:, kept]])


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """Join parts along their last axis, in little more room than they take: each is given up."""
    first = parts[0]
    shape = (*first.shape[:-1], sum(part.shape[-1] for part in parts))
    found, begin = np.empty(shape, first.dtype), 0
    while parts:
        part = parts.pop(0)
        found[..., begin : begin + part.shape[-1]] = part
        begin += part.shape[-1]
    return found


def _in_order(lowest: Lowest) -> Ordered:
    """Put the parts together, which are then gone; equal rows become one."""
    codes, counts, columns = map(_joined, lowest)
    place = np.argsort(codes, kind="stable")
    ordered = codes[place]
    if not (ordered[1:] == ordered[:-1]).any():
        return Ordered(columns, place, counts[place])
    del ordered
    # Rows with the same code may differ.
    exact = hash_rows(columns, len(codes))
    place = np.lexsort((exact, codes))
    same = (codes[place][1:] == codes[place][:-1]) & (exact[place][1:] == exact[place][:-1])
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    return Ordered(columns, place[begins], np.add.reduceat(counts[place], begins, dtype=float))


@dataclass(frozen=True)
class StreamedSamples:
    """Samples of which the first are in memory, and all others are read in every pass."""

    head: StoredSamples  # the first samples, enough for most iterations
    # Blocks and samples in all.
    n_blocks: int
    n: int
    # How to read them.
    whitening: Whitening
    chunks: Chunks

    @property
    def blocks(self) -> Blocks:
        """Return the samples in memory."""
        return self.head.blocks

    def first(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the samples of the first block (as columns) and their weights, on the host."""
        return self.head.first()

    def first_missing(self) -> None:
        """Return that nothing is missing: data with gaps are not read in chunks."""

    def grown(self, n_blocks: int) -> int:
        """Return how many blocks to use after so many: all, if not those in memory."""
        more = self.head.grown(n_blocks)
        return more if more > n_blocks else self.n_blocks

    def ascend(
        self, start: Ascent, hyper: Hyperparameters, n_blocks: int, tol: float, max_iter: int
    ) -> Ascent:
        """Ascend on the first blocks, or make one iteration on all samples."""
        if n_blocks < self.n_blocks:
            return self.head.ascend(start, hyper, n_blocks, tol, max_iter)
        begun = Ascent.start(start.statistics, hyper.prior, np.float32(start.objective))
        experts = _fitted(begun.statistics, hyper)
        beta = np.float32(hyper.beta_selector)
        sums = self._sum(partial(_chunk_sums, jax.device_get(experts), beta))
        single = jax.tree.map(np.float32, sums)
        return _iterated(begun, experts, single, hyper, np.float32(self.n))

    def conditional_entropy(self, experts: Experts, beta: np.float32, n_blocks: int) -> float:
        """Return H(M|X), in nats."""
        if n_blocks < self.n_blocks:
            return self.head.conditional_entropy(experts, beta, n_blocks)
        return self._sum(partial(_chunk_entropy, jax.device_get(experts), beta)) / self.n

    def merge_effects(
        self, experts: Experts, hyper: Hyperparameters, pairs: Pairs, n_blocks: int
    ) -> MergeEffects:
        """Return what would change if pairs were one expert."""
        if n_blocks < self.n_blocks:
            return self.head.merge_effects(experts, hyper, pairs, n_blocks)
        known, price = jax.device_get((experts, hyper))
        effects = self._sum(partial(merge_effects, known, price, pairs))
        # The divergence is no sum.
        return effects._replace(
            divergence=self.head.merge_effects(experts, hyper, pairs, 1).divergence
        )

    def _sum(self, function: Callable[[Blocks, np.int32], Any]) -> Any:
        """Add up in double precision what a function gives for the blocks of every chunk."""
        return self.chunks.reduce(partial(_of_chunk, self.whitening, function), _added)


def _of_chunk(
    whitening: Whitening, function: Callable[[Blocks, np.int32], Any], x: np.ndarray
) -> Any:
    columns, weights, used = whitening.blocks(x, (np.arange(len(x)), np.ones(len(x))))
    return jax.tree.map(np.float64, function(Blocks(columns, weights), np.int32(used)))


def _added(a: Any, b: Any) -> Any:
    return jax.tree.map(operator.add, a, b)


def _chunk_sums(experts: Experts, beta: np.float32, blocks: Blocks, n_blocks: np.int32) -> Sums:
    return _sums(experts, beta, blocks, n_blocks)


def _chunk_entropy(experts: Experts, beta: np.float32, blocks: Blocks, n_blocks: np.int32) -> float:
    mean = conditional_entropy(experts, beta, blocks, n_blocks)
    return float(mean) * float(np.sum(blocks.weight, dtype=float))


_sums = bounded(jax.jit(responsibility_sums))
_iterated = bounded(jax.jit(iterated))
_fitted = bounded(jax.jit(fit_experts))
