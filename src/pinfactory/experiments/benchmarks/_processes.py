"""What memory and first calls have to be measured in: a process of its own."""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a function of a module returns when a new process calls it."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *arguments).result()
