"""One call for many evaluations: `sweep`."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sklearn.base import BaseEstimator

from pinfactory import settings as check

from .estimators import fit_and_score
from .evaluation import Call, PointByPoint
from .points import Point, blocks_of, name_of, points_of
from .processes import Reply
from .replicas import SideBySide
from .running import progress_bar, run_tasks
from .store import Computed, Store, digest, encode
from .targets import check_names, stamp_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Failure:
    """A point that could not be evaluated.

    Attributes
    ----------
    point
        Its values.
    error
        The error in one line.
    trace
        The whole trace.
    """

    point: Point
    error: str
    trace: str = field(repr=False)

    def __str__(self) -> str:
        return f"{name_of(self.point)}: {self.error}"


@dataclass(frozen=True)
class SweepResult(Sequence[dict[str, Any]]):
    """What all points gave: a sequence of records, in the order of the grid.

    Attributes
    ----------
    records
        For each point that was evaluated its values, what it gave, and the seconds it took.
    failures
        The others.
    """

    records: list[dict[str, Any]]
    failures: list[Failure]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.records)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row for every record."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("`to_frame` returns a table: pip install pandas.") from error
        return pd.DataFrame(self.records)


class SweepError(RuntimeError):
    """Some points failed; the others are done and, if there is a store, kept.

    Attributes
    ----------
    result
        Everything, as `sweep` would have returned it.
    """

    def __init__(self, result: SweepResult) -> None:
        failures = result.failures
        first = failures[0]
        super().__init__(
            f"{len(failures)} of {len(failures) + len(result)} points failed: "
            + "; ".join(name_of(failure.point) for failure in failures[:10])
            + ("; …" if len(failures) > 10 else "")
            + f"\n{name_of(first.point)}:\n{first.trace}"
        )
        self.result = result


def sweep(
    target: Any,
    grid: Any,
    X: Any = None,
    y: Any = None,
    *,
    test_size: float = 0.2,
    scoring: Any = None,
    random_state: int = 0,
    store: str | Path | None = None,
    jobs: int | None = None,
    scheduler: Any = None,
    replicas: int = 1,
    on_error: str = "raise",
    verbose: bool = True,
) -> SweepResult:
    """Evaluate a function, or fit an estimator, at every point of a grid.

    Points run in local processes, or on the workers of a scheduler. What is done is kept in
    `store` at once: the same call goes on where an earlier one was stopped, whatever stopped it. A
    point whose worker is lost runs again. The numbers do not depend on where a point ran.

    Parameters
    ----------
    target : function or estimator
        A function is called with a point's values as named arguments and returns plain data: a
        mapping (a column for each name) or a single value. An estimator is fitted with the values
        as settings and judged on held-out rows. A script calls `sweep` below
        ``if __name__ == "__main__":``, because processes are spawned.
    grid : mapping or sequence of mappings
        Values for each name, of which all combinations are taken; or the points themselves.
    X, y : array-like, optional
        Data of an estimator.
    test_size : float, default=0.2
        Share of the rows that an estimator is judged on.
    scoring : str or callable, optional
        As in scikit-learn; the estimator's own `score` by default.
    random_state : int, default=0
        Divides the rows; also the seed of an estimator without one.
    store : path, optional
        Folder in which results are kept. They are found again if the code that the target is made
        of, its data, settings and library versions are the same.
    jobs : int, optional
        Number of local processes; one for each core by default.
    scheduler : str, Client or Executor, optional
        Address of a Dask scheduler, a Dask `Client`, or an executor of `concurrent.futures`.
    replicas : int, default=1
        So many points that differ in numbers only run side by side in one compiled program. For
        functions that JAX can trace in these numbers.
    on_error : {"raise", "keep"}, default="raise"
        Whether points that fail raise a `SweepError` after all others are done, or are only told
        in the result.
    verbose : bool, default=True
        Whether to show a bar with the time that remains, if stderr is a terminal.

    Returns
    -------
    SweepResult

    Examples
    --------
    >>> from pinfactory.sweep import sweep
    >>> result = sweep(pow, [{"base": 2, "exp": n} for n in (3, 5)], jobs=1)
    >>> [record["value"] for record in result]
    [8, 32]
    """
    points, size = points_of(grid), check.integer("replicas", replicas, 1)
    check.choice("on_error", on_error, ("raise", "keep"))
    if jobs is not None:
        check.integer("jobs", jobs, 1)
    check_names(target, points)
    evaluate: Any
    if isinstance(target, BaseEstimator):
        if size > 1:
            raise ValueError(
                "`replicas` is for functions that JAX can trace: leave it out for an estimator "
                "(`rate_utility_curve` trains committees side by side)."
            )
        evaluate = fit_and_score(
            target, X, y, test_size=test_size, scoring=scoring, random_state=random_state
        )
    elif X is not None or y is not None:
        raise ValueError("`X` and `y` are for estimators: let the function read its own data.")
    else:
        evaluate = Call(target)
    kept = None
    if store is not None:
        stamp = stamp_of(target, evaluate, size)
        # Sweeps of different targets can share a folder.
        kept = Store(Path(store) / digest(encode(stamp))[:16], stamp)
    work = PointByPoint(evaluate) if size == 1 else SideBySide(target, size)
    outcome = _run(work, points, blocks_of(points, size), kept, jobs, scheduler, verbose)
    if outcome.failures and on_error == "raise":
        raise SweepError(outcome)
    return outcome


def _run(
    work: Callable[[Sequence[Point]], list[Computed]],
    points: Sequence[Point],
    blocks: Sequence[Sequence[Point]],
    store: Store | None,
    jobs: int | None,
    scheduler: Any,
    verbose: bool,
) -> SweepResult:
    """Evaluate what the store lacks, block by block; keep it as it comes."""
    found: dict[str, dict[str, Any]] = {}
    if store is not None:
        stored = {name: store.piece(name) for name in map(name_of, points)}
        found = {name: piece for name, piece in stored.items() if piece is not None}
    # A block is computed whole, as it was before: its numbers do not depend on what is there.
    missing = [block for block in blocks if not all(name_of(p) in found for p in block)]
    failures: dict[str, Failure] = {}

    def note(reply: Reply) -> None:
        for k, point in enumerate(reply.task):
            name = name_of(point)
            if reply.error:
                failures[name] = Failure(point, reply.error, reply.trace)
            elif name not in found:
                computed = reply.value[k]
                found[name] = {"data": json.loads(computed.content), "seconds": computed.seconds}
                if store is not None:
                    store.save(name, computed)
        bar.update(len(reply.task))

    n_missing = sum(map(len, missing))
    with progress_bar(len(points), len(points) - n_missing, "point", verbose) as bar:
        run_tasks(work, missing, note, bar, jobs=jobs, scheduler=scheduler)
    records = [
        {**point, "seconds": found[name]["seconds"], **found[name]["data"]}
        for point in points
        if (name := name_of(point)) in found
    ]
    named = [failures[name] for name in map(name_of, points) if name in failures]
    return SweepResult(records, [f for f in named if name_of(f.point) not in found])
