"""What memory and first calls have to be measured in: a process of its own."""

import multiprocessing
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pinfactory.core.compiling import CACHE_VARIABLE


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module returns when a new process calls it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """Let processes that are started in the block have variables."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_as_user(arguments: Sequence[str], folder: Path, cache: Path) -> tuple[float, str]:
    """Run Python in a folder with a cache of compiled programs; return processor time and output.

    The cache is a user's: experiments turn theirs off, or have another.
    """
    known = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
    began = _seconds_of_children()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**known, CACHE_VARIABLE: str(cache)},
    )
    return _seconds_of_children() - began, done.stdout


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
