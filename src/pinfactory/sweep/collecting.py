"""What all points of a sweep gave, kept as it comes in."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .points import Point, name_of
from .processes import Reply
from .running import progress_bar, run_tasks
from .store import Computed, Store

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Failure:
    """A point that could not be evaluated."""

    point: Point  #: its values
    error: str  #: the error in one line
    trace: str = field(repr=False)  #: the whole trace

    def __str__(self) -> str:
        return f"{name_of(self.point)}: {self.error}"


@dataclass(frozen=True)
class SweepResult(Sequence[dict[str, Any]]):
    """Results of all points: a sequence of records, in the order of the grid."""

    #: For each point that was evaluated its values, what it gave, and the seconds it took.
    records: list[dict[str, Any]]
    failures: list[Failure]  #: the others

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
    """Some points failed; results of the others are stored if there is a store.

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


def collect(
    work: Callable[[Sequence[Point]], list[Computed]],
    points: Sequence[Point],
    blocks: Sequence[Sequence[Point]],
    store: Store | None,
    *,
    jobs: int | None,
    scheduler: Any,
    verbose: bool,
) -> SweepResult:
    """Evaluate what the store lacks, block by block; keep it as it comes.

    A point may be in several blocks; the first that is done counts.
    """
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
            if name in found:
                continue
            bar.update(name not in failures)
            if reply.error:
                failures[name] = Failure(point, reply.error, reply.trace)
                continue
            computed = reply.value[k]
            found[name] = {"data": json.loads(computed.content), "seconds": computed.seconds}
            if store is not None:
                store.save(name, computed)

    with progress_bar(len(points), len(found), "point", verbose) as bar:
        run_tasks(work, missing, note, bar, jobs=jobs, scheduler=scheduler)
    records = [
        {**point, "seconds": found[name]["seconds"], **found[name]["data"]}
        for point in points
        if (name := name_of(point)) in found
    ]
    names = [name for name in map(name_of, points) if name in failures and name not in found]
    return SweepResult(records, [failures[name] for name in names])
