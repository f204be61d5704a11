"""Data that need not fit into memory: memory-mapped arrays, Parquet, Arrow and Dask."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import narwhals as nw
import numpy as np
from sklearn.utils import check_consistent_length

# Rows that are read at a time, and numbers at the most.
CHUNK, CHUNK_NUMBERS = 131_072, 2**24
# A memory-mapped array of fewer bytes is read as a whole.
MAPPED_BYTES = 512 * 2**20
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Part:
    """Some samples with their targets."""

    X: Any
    y: Any

    def __len__(self) -> int:
        return self.X.shape[0]


@dataclass(frozen=True)
class LocalChunks:
    """Chunks that this process reads one after the other."""

    example: Any  #: a few rows, by which number and names of the columns are known
    #: Returns all chunks, anew each time: samples, or pairs of samples and targets.
    read: Callable[[], Iterator[Any]]

    def reduce(
        self, function: Callable[[Any], _Result], join: Callable[[_Result, _Result], _Result]
    ) -> _Result:
        """Return what a function gives for all chunks, joined one after the other."""
        found = (function(part) for part in self.read() if len(part))
        if (first := next(found, None)) is None:
            raise ValueError("X must have rows, but got none.")
        return reduce(join, found, first)

    def map(self, function: Callable[[Any], Any]) -> "LocalChunks":
        """Return what a function makes of every chunk."""
        return replace(self, read=lambda: map(function, self.read()))


@dataclass(frozen=True)
class DaskChunks:
    """Partitions of a Dask array or data frame, which stay where they are."""

    example: Any  #: as of `LocalChunks`
    partitions: list[Any]  #: delayed arrays or data frames

    def read(self) -> Iterator[Any]:
        """Return all partitions, fetched one after the other."""
        return (part.compute() for part in self.partitions)

    def reduce(
        self, function: Callable[[Any], _Result], join: Callable[[_Result, _Result], _Result]
    ) -> _Result:
        """Return what a function gives for all partitions, joined in a tree by Dask's scheduler."""
        from dask import delayed

        layer = [delayed(partial(_evaluate, function))(part) for part in self.partitions]
        while len(layer) > 1:
            pairs = zip(layer[::2], layer[1::2], strict=False)
            rest = layer[-1:] if len(layer) % 2 else []
            layer = [delayed(partial(_joined, join))(a, b) for a, b in pairs] + rest
        if (found := layer[0].compute()) is None:
            raise ValueError("X must have rows, but got none.")
        return found

    def map(self, function: Callable[[Any], Any]) -> "DaskChunks":
        """Return what a function makes of every partition."""
        from dask import delayed

        return replace(self, partitions=[delayed(function)(part) for part in self.partitions])


Chunks = LocalChunks | DaskChunks


def _evaluate(function: Callable[[Any], Any], part: Any) -> Any:
    return function(part) if len(part) else None


def _joined(join: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Join what two partitions give; an empty partition gives nothing."""
    if a is None or b is None:
        return b if a is None else a
    return join(a, b)


def numbers(chunks: Chunks) -> Chunks:
    """Return chunks as finite numbers."""
    return chunks.map(partial(_checked, chunks.example.shape[1]))


def _checked(n_columns: int, part: Any) -> np.ndarray:
    x = np.asarray(part, np.float64)
    if x.ndim != 2 or x.shape[1] != n_columns:
        raise ValueError(
            f"X must have {n_columns} columns in all its parts, but got {x.shape} rows and columns."
        )
    if not np.isfinite(x).all():
        raise ValueError(
            "Input X contains NaN, infinity or missing values: leave such rows out, or fill them."
        )
    return x


def as_chunks(X: Any) -> Chunks | None:
    """Return data in chunks if they are of a kind that need not fit into memory, else None.

    Parameters
    ----------
    X
        A large `numpy.memmap`; the path of a Parquet file or of a folder of such files; a
        `pyarrow.dataset.Dataset`; a Dask array or data frame; or `LocalChunks` that read anything
        else.
    """
    if isinstance(X, LocalChunks | DaskChunks):
        return X
    if isinstance(X, np.memmap):
        return _mapped(X) if X.nbytes > MAPPED_BYTES else None
    if isinstance(X, str | Path):
        if not Path(X).exists():
            raise FileNotFoundError(f"There is no {X!r}: X is data or the path of Parquet files.")
        try:
            from pyarrow import dataset
        except ImportError as error:
            raise ImportError("Parquet needs pyarrow: pip install 'pinfactory[large]'.") from error
        return _arrow(dataset.dataset(X, format="parquet"))
    package = type(X).__module__.partition(".")[0]
    if package == "pyarrow" and hasattr(X, "to_batches") and hasattr(X, "scanner"):
        return _arrow(X)
    if package in ("dask", "dask_expr") and hasattr(X, "dask"):
        return _dask(X)
    return None


def _mapped(X: np.memmap) -> LocalChunks:
    return LocalChunks(X[:5], lambda: map(np.asarray, _cut(X, _length(X.shape[1]))))


def _length(n_columns: int) -> int:
    """Return how many rows are read at a time."""
    return max(min(CHUNK, CHUNK_NUMBERS // max(n_columns, 1)), 1)


def _arrow(data: Any) -> LocalChunks:
    import pyarrow as pa

    return LocalChunks(
        data.head(5).to_pandas(), lambda: (pa.Table.from_batches([b]) for b in _batches(data))
    )


def _batches(data: Any) -> Iterator[Any]:
    """Return batches of an Arrow data set, one file and one row group after the other.

    As a whole it would read on while a batch is computed with, up to a gigabyte.
    """
    length = _length(len(data.schema))
    options = {"batch_size": length, "batch_readahead": 2, "fragment_readahead": 1}
    try:
        fragments = list(data.get_fragments())
    except ValueError:  # A filtered data set can be read as a whole only.
        yield from data.to_batches(**options)
        return
    for fragment in fragments:
        groups = getattr(fragment, "split_by_row_group", lambda whole=fragment: [whole])()
        for group in groups:
            yield from group.to_batches(schema=data.schema, **options)


def _dask(X: Any) -> DaskChunks:
    if hasattr(X, "columns"):
        return DaskChunks(X.head(5, npartitions=-1), list(X.to_delayed()))
    if X.ndim != 2:
        raise ValueError(f"X must have rows and columns, but got {X.ndim} dimensions.")
    return DaskChunks(X[:5].compute(), list(X.rechunk({1: -1}).to_delayed().ravel()))


def refuse_weights(sample_weight: Any) -> None:
    """Raise a ValueError if samples that are read in chunks are given weights."""
    if sample_weight is not None:
        raise ValueError("`sample_weight` must be None for data that are read in chunks.")


# ------------------------------------------------------------------------- samples with targets


def with_targets(X: Any, y: Any) -> Chunks | None:
    """Return samples with targets, a `Part` for each chunk, as `as_chunks` does for samples alone.

    Parameters
    ----------
    X
        As in `as_chunks`.
    y
        The name of the column of `X` that holds targets, or several names; for a memory-mapped
        array an array of as many rows; for a Dask array or data frame another one that is divided
        in the same way. None for `LocalChunks` that read pairs of samples and targets.
    """
    chunks = as_chunks(X)
    if chunks is None:
        return None
    if _is_name(y) and not isinstance(X, np.memmap):  # whose columns have no names
        example = _split(y, chunks.example).X
        return replace(chunks.map(partial(_split, y)), example=example)
    if isinstance(chunks, DaskChunks):
        return replace(chunks, partitions=_paired(X, chunks.partitions, y))
    if isinstance(X, np.memmap):
        targets = np.asarray(y)
        check_consistent_length(X, targets)
        return replace(
            chunks, read=lambda: map(_pair, chunks.read(), _cut(targets, _length(X.shape[1])))
        )
    if isinstance(X, LocalChunks) and y is None:
        return chunks.map(lambda pair: Part(pair[0], np.asarray(pair[1])))
    raise ValueError(
        "`y` must be the name of a column of X (or a list of names) for data that are read from "
        f"files, but got {type(y).__name__}."
    )


def _is_name(y: Any) -> bool:
    return isinstance(y, str) or (
        isinstance(y, list | tuple) and len(y) > 0 and all(isinstance(name, str) for name in y)
    )


def _split(names: str | Sequence[str], part: Any) -> Part:
    """Return the columns of a frame that are samples, and those that are targets."""
    frame = nw.from_native(part, eager_only=True)
    asked = [names] if isinstance(names, str) else list(names)
    if absent := [name for name in asked if name not in frame.columns]:
        raise ValueError(
            f"`y` must name columns of X, which are {frame.columns}, but got {absent}."
        )
    for name in asked:
        if frame[name].is_null().any():
            raise ValueError(f"`y` must have no missing values, but column {name!r} has some.")
    columns = [np.asarray(frame[name].to_numpy()) for name in asked]
    y = columns[0] if isinstance(names, str) else np.column_stack(columns)
    return Part(frame.drop(asked).to_native(), y)


def _paired(X: Any, samples: Sequence[Any], y: Any) -> list[Any]:
    """Return the partitions of Dask data with those of their targets."""
    from dask import delayed

    if not hasattr(y, "dask"):
        raise ValueError(
            "`y` must be a Dask array or series, or the name of a column, as `X` is Dask's, but "
            f"got {type(y).__name__}."
        )
    if hasattr(y, "rechunk"):
        rows = {0: X.chunks[0]} if hasattr(X, "chunks") else {}
        y = y.rechunk(rows | dict.fromkeys(range(1, y.ndim), -1))
    targets = list(np.ravel(y.to_delayed()))
    if len(targets) != len(samples):
        raise ValueError(
            f"`X` and `y` must be divided in the same way, but have {len(samples)} and "
            f"{len(targets)} partitions."
        )
    return [delayed(_pair)(x, t) for x, t in zip(samples, targets, strict=True)]


def _pair(x: Any, y: Any) -> Part:
    if len(x) != len(y):
        raise ValueError(f"X and y must have as many rows, but got {len(x)} and {len(y)}.")
    return Part(x, np.asarray(y))


def _cut(rows: np.ndarray, length: int) -> Iterator[np.ndarray]:
    return (rows[i : i + length] for i in range(0, len(rows), length))
