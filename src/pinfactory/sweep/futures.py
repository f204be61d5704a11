"""Tasks on workers that others manage: a Dask cluster, or any executor of futures."""

import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Executor, Future
from functools import lru_cache
from numbers import Integral
from typing import Any

import cloudpickle

from .processes import ONE_THREAD, Reply, Workers, attempt, n_cores

# As a `scheduler`: one task after the other in this process.
IN_PROCESS = "in process"
_SECONDS_FOR_WORKERS = 60


Here = Callable[[Any], Callable[[Any], Any] | None]


class Portable:
    """A function that any process can call, wherever it was defined: notebooks and lambdas too."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._content = cloudpickle.dumps(function)

    def __call__(self, task: Any) -> Any:
        return _loaded(self._content)(task)


@lru_cache(maxsize=1)
def _loaded(content: bytes) -> Callable[[Any], Any]:
    return cloudpickle.loads(content)


class Futures:
    """Tasks on an executor.

    Parameters
    ----------
    executor
        Runs them.
    function
        Called with every task; on a Dask cluster a future of it, which every worker has once.
    here
        Returns a function for a task that has to run in this process, None for the others.
    close
        Called when all is done.
    window
        How many tasks are handed over at a time: more than workers, so that none waits for the
        next.
    """

    def __init__(
        self,
        executor: Any,
        function: Any,
        here: Here,
        close: Callable[[], Any] = lambda: None,
        window: int = 4096,
    ) -> None:
        self._executor, self._function, self._here, self._close = executor, function, here, close
        self._window = window
        self._tasks: dict[Future[Reply], Any] = {}
        self._done: queue.SimpleQueue[Future[Reply]] = queue.SimpleQueue()

    def __enter__(self) -> "Futures":
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._tasks:
            future.cancel()
        self._close()

    @property
    def n_busy(self) -> int:
        """Return how many tasks are under way."""
        return len(self._tasks)

    @property
    def free(self) -> Sequence[int]:
        """Return as many numbers as tasks can be handed over."""
        return range(self._window - self.n_busy)

    def begin(self, slot: int, task: Any) -> None:
        """Hand a task over, or do it."""
        function = self._here(task)
        if function is None:
            future = self._executor.submit(_attempt_remotely, self._function, task)
        else:
            future = Future()
            future.set_result(attempt(function, task))
        self._tasks[future] = task
        future.add_done_callback(self._done.put)

    def finished(self, timeout: float) -> Iterator[Reply]:
        """Yield the replies that have come after at most `timeout` seconds."""
        try:
            future = self._done.get(timeout=timeout)
            while True:
                yield self._reply(future)
                future = self._done.get_nowait()
        except queue.Empty:
            return

    def _reply(self, future: "Future[Reply]") -> Reply:
        task = self._tasks.pop(future)
        try:
            return future.result()
        except (Exception, CancelledError) as error:
            text = f"the worker was lost: {type(error).__name__}: {error}"
            return Reply(task, error=text, trace=text)


def _attempt_remotely(function: Callable[[Any], Any], task: Any) -> Reply:
    # Before JAX starts, if it has not been used there: with one thread sums have one order.
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)
    return attempt(function, task)


def open_pool(
    function: Callable[[Any], Any],
    *,
    jobs: int | None = None,
    scheduler: Any = None,
    n_tasks: int | None = None,
    environment: Mapping[str, str] = ONE_THREAD,
    here: Here = lambda task: None,
) -> Workers | Futures:
    """Return where tasks run.

    Parameters
    ----------
    function
        Called with every task.
    jobs
        How many local processes; as many as there are cores by default.
    scheduler
        None for local processes; `IN_PROCESS`; or the address of a Dask scheduler, a Dask
        `Client`, or an executor of `concurrent.futures`.
    n_tasks
        No more processes than tasks are started.
    environment
        Variables of the environment that local processes get.
    here
        Of a scheduler: returns a function for a task that has to run in this process.
    """
    # Without a process that is free all would wait for ever.
    if jobs is not None and (not isinstance(jobs, Integral) or isinstance(jobs, bool) or jobs < 1):
        raise ValueError(f"`jobs` must be an integer of at least 1, but got {jobs!r}.")
    if scheduler == IN_PROCESS:
        return Futures(None, None, lambda task: function, window=1)
    portable = Portable(function)
    if scheduler is None:
        n = jobs or n_cores()
        return Workers(n if n_tasks is None else min(n, n_tasks), portable, environment)
    if jobs is not None:
        raise ValueError("`jobs` counts local processes: leave it out if there is a `scheduler`.")
    if isinstance(scheduler, str):
        client = _connect(scheduler)
        return Futures(client.get_executor(pure=False), _sent(client, portable), here, client.close)
    if hasattr(scheduler, "get_executor"):
        executor = scheduler.get_executor(pure=False)
        return Futures(executor, _sent(scheduler, portable), here)
    if isinstance(scheduler, Executor):
        return Futures(scheduler, portable, here)
    raise ValueError(
        "`scheduler` must be the address of a Dask scheduler, a Dask Client or an executor of "
        f"concurrent.futures, but got {scheduler!r}."
    )


def _connect(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise ImportError("`scheduler` needs Dask: pip install 'pinfactory[cluster]'.") from error
    return Client(address, set_as_default=False)


def _sent(client: Any, function: Portable) -> Any:
    """Send a function, with the data it holds, to every worker once."""
    address = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=_SECONDS_FOR_WORKERS)
    except TimeoutError:
        raise ConnectionError(
            f"no worker has joined {address} for {_SECONDS_FOR_WORKERS} seconds: start one with "
            f"`dask worker {address}`"
        ) from None
    # Not told apart by content: hashing what may be large gains nothing.
    return client.scatter(function, broadcast=True, hash=False)
