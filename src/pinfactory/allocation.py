"""A limit on the size of what is built from settings that nobody has checked, such as a file's.

Whatever draws the weights of a network calls `reserve` first. Outside `limited` that does nothing.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# An array counts as this many numbers at least: a million empty ones cost time, too.
SMALLEST = 16


class AllocationError(ValueError):
    """Say that the settings ask for larger arrays than the limit in force allows."""


_left: ContextVar[int | None] = ContextVar("_left", default=None)


@contextmanager
def limited(n_numbers: int) -> Iterator[None]:
    """Let arrays of at most `n_numbers` numbers in all be reserved in the block."""
    token = _left.set(n_numbers)
    try:
        yield
    finally:
        _left.reset(token)


def reserve(*shape: int) -> None:
    """Count an array of this shape against the limit in force, if there is one.

    Raises
    ------
    AllocationError
        If the limit is exceeded.
    """
    left = _left.get()
    if left is None:
        return
    left -= max(SMALLEST, math.prod(shape))
    if left < 0:
        raise AllocationError(f"an array of shape {shape} is more than the limit allows")
    _left.set(left)
