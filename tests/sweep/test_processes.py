"""Processes that do tasks."""

import atexit
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pinfactory.sweep.futures import open_pool
from pinfactory.sweep.processes import Workers

FIRST_PROCESS = """
import signal
from functools import partial
from pinfactory.sweep.processes import Workers

with Workers(1, partial(signal.pthread_sigmask, signal.SIG_BLOCK), {}) as workers:
    workers.begin(0, ())
    (reply,) = workers.finished(600.0)
print(signal.SIGINT in reply.value)
"""


def test_the_first_process_does_not_see_interrupts_either():
    # Alone in a process: the first start of all starts multiprocessing's own helper, too.
    run = subprocess.run([sys.executable, "-c", FIRST_PROCESS], capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr


def leave_for_later(folder: Path) -> None:
    """Leave something to a thread, and something to the end of the process."""

    def write_later() -> None:
        time.sleep(0.2)
        (folder / "thread").touch()

    threading.Thread(target=write_later).start()
    atexit.register((folder / "exit").touch)
    print("told", end="")


def test_what_tasks_leave_for_later_is_done_before_their_process_ends(tmp_path, capfd):
    with Workers(1, leave_for_later, {}) as workers:
        workers.begin(0, tmp_path)
        (reply,) = workers.finished(600.0)
        (process,) = (worker.process for worker in workers._workers.values())
    assert reply.error == ""
    assert process.exitcode == 0
    assert {path.name for path in tmp_path.iterdir()} == {"thread", "exit"}
    assert capfd.readouterr().out == "told"


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("jobs", [0, -1, 1.5, True, "2"])
def test_a_number_of_processes_that_is_none_is_refused_not_waited_for(jobs):
    with pytest.raises(ValueError, match="`jobs` must be an integer of at least 1"):
        open_pool(print, jobs=jobs)
