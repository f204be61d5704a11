"""Data that need not fit into memory: memory-mapped arrays, Parquet, Arrow and Dask."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

# Rows that are read at a time.
CHUNK = 131_072
# A memory-mapped array of fewer bytes is read as a whole.
MAPPED_BYTES = 512 * 2**20
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class LocalChunks:
    """Chunks that this process reads one after the other."""

    example: Any  #: a few rows, by which number and names of the columns are known
    read: Callable[[], Iterator[Any]]  #: returns all chunks, anew each time

    def reduce(
        self,
        function: Callable[[np.ndarray], _Result],
        join: Callable[[_Result, _Result], _Result],
    ) -> _Result:
        """Return what a function gives for all chunks, joined one after the other."""
        n_columns = self.example.shape[1]
        parts = (checked(n_columns, part) for part in self.read())
        return reduce(join, (function(part) for part in parts if len(part)))


@dataclass(frozen=True)
class DaskChunks:
    """Partitions of a Dask array or data frame, which stay where they are."""

    example: Any  #: as of `LocalChunks`
    partitions: list[Any]  #: delayed arrays or data frames

    def reduce(
        self,
        function: Callable[[np.ndarray], _Result],
        join: Callable[[_Result, _Result], _Result],
    ) -> _Result:
        """Return what a function gives for all partitions, joined in a tree by Dask's scheduler."""
        from dask import delayed

        evaluate = partial(_evaluate, function, self.example.shape[1])
        layer = [delayed(evaluate)(part) for part in self.partitions]
        while len(layer) > 1:
            pairs = zip(layer[::2], layer[1::2], strict=False)
            rest = layer[-1:] if len(layer) % 2 else []
            layer = [delayed(partial(_joined, join))(a, b) for a, b in pairs] + rest
        return layer[0].compute()


def _evaluate(function: Callable[[np.ndarray], Any], n_columns: int, part: Any) -> Any:
    part = checked(n_columns, part)
    return function(part) if len(part) else None


def _joined(join: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Join what two partitions give; an empty partition gives nothing."""
    if a is None or b is None:
        return b if a is None else a
    return join(a, b)


def checked(n_columns: int, part: Any) -> np.ndarray:
    """Return a chunk as finite numbers."""
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


def as_chunks(X: Any) -> LocalChunks | DaskChunks | None:
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
    return LocalChunks(X[:5], lambda: (X[i : i + CHUNK] for i in range(0, len(X), CHUNK)))


def _arrow(data: Any) -> LocalChunks:
    def read() -> Iterator[np.ndarray]:
        for batch in _batches(data):
            columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            yield np.column_stack([np.asarray(column, np.float64) for column in columns])

    return LocalChunks(data.head(5).to_pandas(), read)


def _batches(data: Any) -> Iterator[Any]:
    """Return batches of an Arrow data set, one file and one row group after the other.

    As a whole it would read on while a batch is computed with, up to a gigabyte.
    """
    options = {"batch_size": CHUNK, "batch_readahead": 2, "fragment_readahead": 1}
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
