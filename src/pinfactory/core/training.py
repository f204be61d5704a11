"""The one training loop: compiled chunks of steps, replicas side by side, a Python loop around.

Progress bars, logs and checkpoints are callbacks (`pinfactory.callbacks`): this module touches
no file and no screen.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from .batches import Batches, take
from .compiling import compiled, compiled_as_kernel

State = TypeVar("State")

# Up to so many bytes of state replicas train one after the other, each as a single kernel.
TINY = 8192


@runtime_checkable
class Steps(Protocol):
    """What training needs of a setting: a pure step, hashable so that programs are reused."""

    def step(self, key: Key[Array, ""], state: Any, batch: Any, /) -> tuple[Any, Any]:
        """Return the next state and a pytree of scalars."""


class Best(eqx.Module, Generic[State]):
    """The best state of every replica so far, by a score on held-out data."""

    score: Float[Array, " replicas"]
    state: State
    stale: Int[Array, " replicas"]

    @classmethod
    def none_yet(cls, state: State, n_replicas: int) -> "Best[State]":
        """Start below every score."""
        return cls(jnp.full(n_replicas, -jnp.inf, float), state, jnp.zeros(n_replicas, int))

    def update(self, score: Float[Array, " replicas"], state: State) -> "Best[State]":
        """Keep `state` of the replicas that improved."""
        better = score > self.score
        kept = jax.tree.map(
            lambda new, old: _where(better, new, old) if eqx.is_array(new) else new,
            state,
            self.state,
        )
        return type(self)(
            jnp.where(better, score, self.score), kept, jnp.where(better, 0, self.stale + 1)
        )


class Run(eqx.Module, Generic[State]):
    """Everything a resume needs. Arrays in `state` have a leading axis of replicas."""

    key: Key[Array, " replicas"]
    step: Int[Array, ""]
    state: State
    best: Best[State] | None

    @classmethod
    def start(
        cls, key: Key[Array, " replicas"], state: State, *, keep_best: bool = False
    ) -> "Run[State]":
        """Begin at step 0 with one key for each replica."""
        # Weak types would turn strong in the first chunk, and the second would compile anew.
        state = jax.tree.map(
            lambda leaf: leaf.astype(leaf.dtype) if getattr(leaf, "weak_type", False) else leaf,
            state,
        )
        best = Best.none_yet(state, len(key)) if keep_best else None
        return cls(key, jnp.asarray(0), state, best)


class Progress(NamedTuple):
    """What callbacks get after every chunk; `info` holds means over the chunk for each replica."""

    step: int
    total: int
    info: PyTree[np.ndarray]
    score: np.ndarray | None
    seconds: float


class Callback:
    """Something that watches training. Override what you need."""

    def start(self, run: Run, total: int) -> None:
        """Be told that training begins at `run.step` and goes to `total`."""

    def chunk(self, progress: Progress, run: Run) -> bool | None:
        """Be told of a finished chunk; return True to stop training."""

    def finish(self) -> None:
        """Be told that training has ended, for whatever reason."""


@dataclass(frozen=True)
class Trained(Generic[State]):
    """How training ended."""

    run: Run[State]
    history: list[Progress]
    ending: Literal["finished", "stale", "callback", "interrupted"]


class NonFiniteError(FloatingPointError):
    """A loss or a parameter stopped being finite. `run` is the last finite state."""

    def __init__(self, where: str, step: int, replica: int, expert: int | None, run: Run) -> None:
        of_expert = "" if expert is None else f", expert {expert}"
        super().__init__(
            f"Training stopped being finite at step {step}: {where} (replica {replica}"
            f"{of_expert}). The last finite state is kept. Try a smaller learning rate, or check "
            "the data for extreme values."
        )
        self.step, self.replica, self.expert, self.run = step, replica, expert, run


def train(
    learner: Steps,
    run: Run[State],
    data: PyTree,
    *,
    steps: int,
    batches: Batches | None = None,
    chunk: int = 500,
    evaluate: Callable[[State], Float[Array, " replicas"]] | None = None,
    patience: int | None = None,
    callbacks: Sequence[Callback] = (),
    data_per_replica: bool = False,
) -> Trained[State]:
    """Train all replicas until `steps` steps are done in total.

    Parameters
    ----------
    learner
        Supplies the pure step.
    run
        Where to start, fresh or from a checkpoint.
    data
        What the steps learn from; never closed over, so that other data of the same shape
        compiles nothing.
    steps
        The step at which to end, counted from the run's very start.
    batches
        Chooses the rows of `data` that each step gets; without it a step gets all of them. A
        `Source` in place of plain data makes a batch of whatever was chosen.
    chunk
        Steps between two returns to Python, where callbacks run and Ctrl-C takes effect.
    evaluate
        Scores the state of every replica after each chunk, higher is better; the best state of
        each is kept in `run.best`.
    patience
        End when no replica's score has improved for so many chunks.
    callbacks
        Called after every chunk.
    data_per_replica
        Whether arrays in `data` have a leading axis of replicas instead of being shared.

    Raises
    ------
    NonFiniteError
        When a loss or parameter stops being finite.
    """
    if (evaluate is None) != (run.best is None):
        raise ValueError(
            "`evaluate` must be given exactly when the run was started with keep_best."
        )
    history: list[Progress] = []
    ending: Literal["finished", "stale", "callback", "interrupted"] = "finished"
    seeds = np.asarray(jax.random.key_data(run.key)).tolist()
    in_turn = _size(run) <= TINY
    program = _advance_in_turn if in_turn else _advance_side_by_side
    with ExitStack() as finishing:
        for callback in callbacks:
            callback.start(run, steps)
            finishing.callback(callback.finish)
        try:
            while (done := int(run.step)) < steps:
                began = time.perf_counter()
                n_steps = min(chunk, steps - done)
                # Always the rows for a full chunk: the last, shorter one is the same program.
                rows = None
                if batches is not None:
                    rows = jax.tree.map(jnp.asarray, batches(seeds, done, chunk))
                advance = partial(program, learner, data, rows, data_per_replica, in_turn)
                new, info, finite = advance(run, jnp.asarray(0), jnp.asarray(n_steps))
                if not finite:
                    raise _first_non_finite(advance, run, n_steps)
                score = None
                if evaluate is not None and new.best is not None:
                    score = evaluate(new.state)
                    new = eqx.tree_at(lambda r: r.best, new, new.best.update(score, new.state))
                run = new
                progress = Progress(
                    done + n_steps,
                    steps,
                    jax.tree.map(np.asarray, info),
                    None if score is None else np.asarray(score),
                    time.perf_counter() - began,
                )
                history.append(progress)
                votes = [callback.chunk(progress, run) for callback in callbacks]
                if any(votes):
                    ending = "callback"
                    break
                if patience is not None and run.best and bool((run.best.stale >= patience).all()):
                    ending = "stale"
                    break
        except KeyboardInterrupt:
            ending = "interrupted"
            warnings.warn(
                f"Training was interrupted at step {int(run.step)} of {steps}; what was learned "
                "until then is kept.",
                stacklevel=2,
            )
    return Trained(run, history, ending)


def _advance(
    learner: Steps,
    data: PyTree,
    rows: PyTree[Array],
    data_per_replica: bool,
    in_turn: bool,
    run: Run,
    first: Int[Array, ""],
    n_steps: Int[Array, ""],
) -> tuple[Run, PyTree, Array]:
    """Do `n_steps` steps of a chunk, from its step `first` on.

    Return the new run, the mean info and whether all of it is finite. The number of steps is
    traced: the last, shorter chunk of a run is the same program. Replicas run side by side, or
    `in_turn`.
    """
    arrays, static = eqx.partition(run.state, eqx.is_array)
    shared, own = (None, data) if data_per_replica else (data, None)

    def replica(start: tuple[Array, PyTree, PyTree, PyTree]) -> tuple[PyTree, PyTree]:
        key, arrays, own, rows = start
        seen = own if data_per_replica else shared

        def step(i: Array, arrays: PyTree) -> tuple[PyTree, PyTree]:
            batch = seen
            if rows is not None:
                batch = take(seen, jax.tree.map(lambda leaf: leaf[first + i], rows))
            state, info = learner.step(
                jax.random.fold_in(key, run.step + i), eqx.combine(arrays, static), batch
            )
            return eqx.filter(state, eqx.is_array), info

        def body(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            arrays, means = carry
            arrays, info = step(i, arrays)
            return arrays, jax.tree.map(lambda mean, new: mean + new / n_steps, means, info)

        _, like = eqx.filter_eval_shape(step, jnp.asarray(0), arrays)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.result_type(leaf, float)), like)
        return jax.lax.fori_loop(0, n_steps, body, (arrays, zeros))

    replicas = (run.key, arrays, own, rows)
    arrays, info = jax.lax.map(replica, replicas) if in_turn else jax.vmap(replica)(replicas)
    new = Run(run.key, run.step + n_steps, eqx.combine(arrays, static), run.best)
    # As one vector: the compiler would take its time for as many checks as there are arrays.
    everything = jnp.concatenate([jnp.ravel(leaf) for leaf in _floats((new.state, info))])
    finite = jnp.isfinite(everything).all()
    return new, info, finite


_advance_side_by_side, _advance_in_turn = compiled(_advance), compiled_as_kernel(_advance)


def _size(run: Run) -> float:
    """Return the bytes of one replica's state."""
    return sum(leaf.nbytes for leaf in _floats(run.state)) / len(run.key)


def _floats(tree: PyTree) -> list[Array]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))


def _first_non_finite(
    advance: Callable[..., tuple[Run, PyTree, Array]], run: Run, n_steps: int
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
    # expert is at fault where others are still whole.
    for name, where in broken.items():
        if ".experts" in name:
            experts = np.any(where, axis=tuple(range(2, where.ndim)), keepdims=False)
            at_fault = np.argwhere(experts & ~experts.all(axis=1, keepdims=True))
            if len(at_fault):
                return NonFiniteError(name, step, int(at_fault[0][0]), int(at_fault[0][1]), kept)
    name, where = next(iter(broken.items()))
    return NonFiniteError(name, step, int(np.argwhere(where)[0][0]), None, kept)


def _where(condition: Array, new: Array, old: Array) -> Array:
    """Choose whole replicas; works for typed keys as well."""
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
