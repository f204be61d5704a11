"""Points that differ in numbers only, side by side in one compiled program."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from .points import Point, columns_of, is_number
from .store import Computed, compute_block


@dataclass(frozen=True)
class SideBySide:
    """Evaluates a JAX function for all points of a block at once, with `vmap`."""

    # A function of named arguments that JAX can trace in all arguments that are numbers.
    function: Callable[..., Any]
    size: int  # blocks are filled up to this many points, so that all run in one program

    def __call__(self, block: Sequence[Point]) -> list[Computed]:
        """Return what each point gives."""
        return compute_block(partial(self._columns, block))

    def _columns(self, block: Sequence[Point]) -> list[Mapping[str, Any]]:
        rows = [*block, *[block[-1]] * (self.size - len(block))]
        numbers = [name for name, value in rows[0].items() if is_number(value)]
        fixed = tuple((name, value) for name, value in rows[0].items() if name not in numbers)
        stacked = {name: np.asarray([row[name] for row in rows]) for name in numbers}
        found = jax.device_get(_program(self.function, _frozen(fixed))(stacked))
        split = [jax.tree.map(itemgetter(k), found) for k in range(len(block))]
        return list(map(columns_of, split, block))


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@cache
def _program(
    function: Callable[..., Any], fixed: tuple[tuple[str, Any], ...]
) -> Callable[[Mapping[str, np.ndarray]], Any]:
    """Return the compiled program; one for all points with the same values that are no numbers."""

    def one(numbers: Mapping[str, Any]) -> Any:
        return function(**dict(fixed), **numbers)

    return jax.jit(jax.vmap(one))
