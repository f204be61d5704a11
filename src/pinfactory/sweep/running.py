"""Many tasks on a pool of workers, with a bar that tells the time that remains."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import cloudpickle
from tqdm import tqdm

from .futures import Futures, open_pool
from .processes import Reply, Workers

_BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"


# Where tasks run.
Pool = Workers | Futures


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


def gather(
    function: Callable[[Any], Any],
    tasks: Sequence[Any],
    *,
    jobs: int | None,
    scheduler: Any,
    verbose: bool,
) -> list[Any]:
    """Return what a function gives for each task: any object, pickled on its way.

    If tasks fail, a RuntimeError says which, after all others are done.
    """
    replies: dict[int, Reply] = {}

    def note(reply: Reply) -> None:
        replies[reply.task[0]] = reply
        bar.update()

    with progress_bar(len(tasks), 0, "task", verbose) as bar:
        work = _Pickling(function)
        run_tasks(work, list(enumerate(tasks)), note, bar, jobs=jobs, scheduler=scheduler)
    if failed := [reply for reply in replies.values() if reply.error]:
        raise RuntimeError(
            f"{len(failed)} of {len(tasks)} failed; the first was {failed[0].task[1]}:\n"
            f"{failed[0].trace}"
        )
    return [cloudpickle.loads(replies[i].value) for i in range(len(tasks))]


@dataclass(frozen=True)
class _Pickling:
    """Pickles what a function gives, so that an object that cannot be is an error of its task."""

    function: Callable[[Any], Any]

    def __call__(self, task: tuple[int, Any]) -> bytes:
        return cloudpickle.dumps(self.function(task[1]))


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
