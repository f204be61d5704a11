"""Processes that do tasks."""

import subprocess
import sys

FIRST_PROCESS = """
import signal
from functools import partial
from pinfactory.sweep.processes import Workers

with Workers(1, partial(signal.pthread_sigmask, signal.SIG_BLOCK), {}) as workers:
    workers.begin(0, ())
    (reply,) = workers.finished(600)
print(signal.SIGINT in reply.value)
"""


def test_the_first_process_does_not_see_interrupts_either():
    # Alone in a process: the first start of all starts multiprocessing's own helper, too.
    run = subprocess.run([sys.executable, "-c", FIRST_PROCESS], capture_output=True, text=True)
    assert run.stdout == "True\n", run.stderr
