"""Where a training that stopped being finite went wrong."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

if TYPE_CHECKING:
    from .training import Run


class NonFiniteError(FloatingPointError):
    """A loss or a parameter stopped being finite. `run` is the last finite state."""

    def __init__(self, where: str, step: int, replica: int, expert: int | None, run: "Run") -> None:
        of_expert = "" if expert is None else f", expert {expert}"
        super().__init__(
            f"Training stopped being finite at step {step}: {where} (replica {replica}"
            f"{of_expert}). The attribute `run` of this error holds the last finite state. Try a "
            "smaller learning rate, or check the data for extreme values."
        )
        self.step, self.replica, self.expert, self.run = step, replica, expert, run


def first_non_finite(
    advance: "Callable[..., tuple[Run, PyTree, Array]]", run: "Run", n_steps: int
) -> NonFiniteError:
    """Find the step at fault by bisection, replaying the chunk from its finite start.

    Checking every step would slow down all runs to explain the few that fail.
    """
    start, good, bad = jnp.asarray(0), 0, n_steps
    while bad - good > 1:
        middle = (good + bad) // 2
        *_, finite = advance(run, start, jnp.asarray(middle))
        good, bad = (middle, bad) if finite else (good, middle)
    kept, *_ = advance(run, start, jnp.asarray(good))
    failed, info, _ = advance(kept, jnp.asarray(good), jnp.asarray(1))
    step = int(kept.step) + 1
    broken = {
        jax.tree_util.keystr(path): ~np.asarray(jnp.isfinite(leaf))
        for path, leaf in jax.tree_util.tree_leaves_with_path((failed.state, info))
        if eqx.is_inexact_array(leaf) and not jnp.isfinite(leaf).all()
    }
    # A broken expert breaks the selector in the same step, and a broken selector all experts: an
    # expert is at fault where others are still finite.
    for name, where in broken.items():
        if ".experts" in name:
            experts = np.any(where, axis=tuple(range(2, where.ndim)), keepdims=False)
            at_fault = np.argwhere(experts & ~experts.all(axis=1, keepdims=True))
            if len(at_fault):
                return NonFiniteError(name, step, int(at_fault[0][0]), int(at_fault[0][1]), kept)
    name, where = next(iter(broken.items()))
    return NonFiniteError(name, step, int(np.argwhere(where)[0][0]), None, kept)
