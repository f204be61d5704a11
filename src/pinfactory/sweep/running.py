"""Many tasks on a pool of workers, with a bar that tells the time that remains."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm

from .futures import open_pool
from .processes import Reply

_BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


@runtime_checkable
class Pool(Protocol):
    """Where tasks run: `processes.Workers` or `futures.Futures`."""

    @property
    def n_busy(self) -> int:
        """Return how many tasks are under way."""
        ...

    @property
    def free(self) -> Sequence[int]:
        """Return the numbers of the workers that can take a task."""
        ...

    def begin(self, slot: int, task: Any) -> None:
        """Give a task to a worker that is free."""
        ...

    def finished(self, timeout: float) -> Iterator[Reply]:
        """Yield the replies that have come after at most `timeout` seconds."""
        ...


@runtime_checkable
class Queue(Protocol):
    """Which task comes next; it may grow as replies come in."""

    def __bool__(self) -> bool: ...

    def next_for(self, slot: int) -> Any | None:
        """Return a task for a worker; None if there is none."""
        ...


def work_off(
    queue: Queue, pool: Pool, bar: tqdm, begun: Callable[[Any], None], note: Callable[[Reply], None]
) -> None:
    """Run all tasks of a queue; call `begun` with every task, and `note` with every reply."""
    while queue or pool.n_busy:
        for slot in pool.free:
            task = queue.next_for(slot)
            if task is None:
                break
            begun(task)
            pool.begin(slot, task)
        for reply in pool.finished(timeout=1.0):
            note(reply)
        bar.refresh()


class _Line:
    """Tasks one after the other."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks = deque(tasks)

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def next_for(self, slot: int) -> Any | None:
        return self._tasks.popleft() if self._tasks else None


def run_tasks(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    note: Callable[[Reply], None],
    bar: tqdm,
    *,
    jobs: int | None = None,
    scheduler: Any = None,
) -> None:
    """Call a function with every task, on local processes or a scheduler (`open_pool`).

    `note` is called with every reply as soon as it comes; it moves the bar.
    """
    if not tasks:
        return
    with open_pool(function, jobs=jobs, scheduler=scheduler, n_tasks=len(tasks)) as pool:
        work_off(_Line(tasks), pool, bar, lambda task: None, note)


def progress_bar(total: int, done: int, unit: str, progress: bool) -> tqdm:
    """Return a bar on stderr that fits into 80 columns; none where stderr is no terminal."""
    return tqdm(
        total=total,
        initial=done,
        unit=unit,
        ncols=79,
        smoothing=0.0,
        disable=None if progress else True,
        bar_format=_BAR,
    )
