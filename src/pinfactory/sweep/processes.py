"""Processes that each do one task at a time; if one fails, the others go on."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any

# Several processes with one thread each do more than one process with several, and a task gives
# the same numbers whatever runs beside it. NPROC is what XLA asks for.
ONE_THREAD = dict.fromkeys(
    ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)

MOST_ATTEMPTS = 3


def n_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True)
class Reply:
    """What became of a task: its value, or what went wrong."""

    task: Any  # the task
    value: Any = None  # what it returned
    error: str = ""  # the error in one line; empty if there was none
    trace: str = ""  # the whole trace of the error


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    task: Any = None
    busy: bool = False
    slot: int = 0
    n_lost: int = 0


class Workers:
    """Up to `n` spawned processes. Forked ones would hang: JAX has threads.

    They never see Ctrl-C, so that no task can take it for a wish to stop early: leaving the block
    by an exception, an interrupt too, ends them with whatever they are doing. A task whose process
    is killed runs again in a new one, up to `MOST_ATTEMPTS` times: a task that takes too much
    memory would be killed again and again.

    Parameters
    ----------
    n
        How many processes at most; each is started when there is work for it.
    function
        A function of a module, called with every task.
    environment
        Variables of the environment that the processes get.
    pinned
        Whether all run on one and the same core.
    """

    def __init__(
        self,
        n: int,
        function: Callable[[Any], Any],
        environment: Mapping[str, str],
        *,
        pinned: bool = False,
    ) -> None:
        self._function, self._environment, self._pinned = function, environment, pinned
        self._workers: dict[int, _Worker] = {}
        self._slots = range(n)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for worker in self._workers.values():
            if kind is None:
                with contextlib.suppress(OSError):
                    worker.connection.send(None)
            else:
                worker.process.terminate()
        for worker in self._workers.values():
            worker.process.join(10.0)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()

    @property
    def n_busy(self) -> int:
        """Return how many tasks are under way."""
        return sum(worker.busy for worker in self._workers.values())

    @property
    def free(self) -> list[int]:
        """Return the numbers of the processes that have nothing to do, started or not."""
        busy = {slot for slot, worker in self._workers.items() if worker.busy}
        return [slot for slot in self._slots if slot not in busy]

    def begin(self, slot: int, task: Any) -> None:
        """Give a task to a process that is free."""
        worker = self._workers.get(slot) or self._start(slot)
        worker.task, worker.busy = task, True
        # A process that has died meanwhile is noticed by `finished`.
        with contextlib.suppress(OSError):
            worker.connection.send((task,))

    def finished(self, timeout: float) -> Iterator[Reply]:
        """Yield the replies that have come after at most `timeout` seconds."""
        busy = {worker.connection: worker for worker in self._workers.values() if worker.busy}
        for connection in wait(list(busy), timeout):
            worker = busy[connection]  # type: ignore[index]
            try:
                reply = worker.connection.recv()
            except (EOFError, OSError):
                reply = self._restarted(worker)
            if reply is not None:
                worker.busy, worker.n_lost = False, 0
                yield reply

    def _restarted(self, worker: _Worker) -> Reply | None:
        """Run the task of a killed process again; return an error after too many attempts."""
        del self._workers[worker.slot]
        worker.process.join()
        worker.connection.close()
        code, n_lost = worker.process.exitcode or 0, worker.n_lost + 1
        if code < 0 and n_lost < MOST_ATTEMPTS:
            self.begin(worker.slot, worker.task)
            self._workers[worker.slot].n_lost = n_lost
            return None
        text = f"the process ended with exit code {code}"
        if code < 0:
            text = f"the process ended with {signal.Signals(-code).name}, {n_lost} times"
        return Reply(worker.task, error=text, trace=text)

    def _start(self, slot: int) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work, args=(theirs, self._function, self._pinned), daemon=False
        )
        with _inherited(self._environment):
            process.start()
        theirs.close()
        self._workers[slot] = _Worker(process, ours, slot=slot)
        return self._workers[slot]


@contextlib.contextmanager
def _inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """Let a process that is started here have variables, and interrupts blocked.

    It does not run the script that started it: functions of a script come pickled by value.
    """
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    # Starting the tracker unblocks interrupts again: have it before they are blocked.
    resource_tracker.ensure_running()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(connection: Connection, function: Callable[[Any], Any], pinned: bool) -> None:
    """Do tasks until there are no more, or the process that gives them has ended."""
    if pinned and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Imports and traces make objects that stay: to look for garbage among them after every 700, as
    # Python does, takes a seventh of the time until a worker has begun.
    gc.set_threshold(10_000)
    while True:
        try:
            message = connection.recv()
        except (EOFError, OSError):
            break
        if message is None:
            break
        connection.send(attempt(function, *message))
    _end()


def _end() -> None:
    """End this process as Python does, but for taking its objects apart.

    That takes more than half a second after JAX has been used, for which a sweep would wait.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)


def attempt(function: Callable[[Any], Any], task: Any) -> Reply:
    """Do a task, whatever comes of it."""
    try:
        return Reply(task, function(task))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        return Reply(task, error=f"{type(error).__name__}: {error}", trace=trace)


def _end_with_parent() -> None:
    """End this process, in the middle of a task too, when the one that gives tasks is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
