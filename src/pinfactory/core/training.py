"""The one training loop: compiled chunks of steps, replicas side by side, a Python loop around.

Progress bars, logs and checkpoints are callbacks (`pinfactory.callbacks`): this module touches
no file and no screen.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, Key, PyTree

from .batches import (
    Batches,
    Source,
    current_mesh,
    keep_replicated,
    localise,
    replicate,
    share_rows,
    take,
)
from .compiling import (
    compiled,
    compiled_for_long,
    compiled_with_kernels,
    forget_programs,
    one_kernel,
)
from .failures import first_non_finite

State = TypeVar("State")

# Up to so many bytes of state, of a batch, and of the states of all replicas, replicas train one
# after the other in a single kernel. Inside a kernel matrices are multiplied by plain loops, which
# is slow for larger ones; and operations on much more bytes than that XLA would share out to
# threads, which a kernel cannot do.
SMALL_STATE, SMALL_BATCH, SMALL_TOTAL = 8192, 4096, 131_072
# With fewer columns a matrix is multiplied faster by plain loops than by XLA's library.
NARROW = 16


@runtime_checkable
class Steps(Protocol):
    """What training needs of a setting: a pure step, hashable so that programs are reused."""

    def step(self, key: Key[Array, ""], state: Any, batch: Any, /) -> tuple[Any, Any]:
        """Return the next state and a pytree of scalars."""


class Best(eqx.Module, Generic[State]):
    """The best state of every replica so far, by a score on held-out data.

    `step` is when it was found, `stale` how many evaluations ago.
    """

    score: Float[Array, " replicas"]
    state: State
    step: Int[Array, " replicas"]
    stale: Int[Array, " replicas"]

    @classmethod
    def none_yet(cls, state: State, n_replicas: int) -> "Best[State]":
        """Start below every score."""
        none = jnp.zeros(n_replicas, int)
        return cls(jnp.full(n_replicas, -jnp.inf, float), state, none, none)

    def update(
        self, score: Float[Array, " replicas"], state: State, step: Int[Array, ""] | int = 0
    ) -> "Best[State]":
        """Keep `state` of the replicas that improved."""
        return _better(self, score, state, jnp.asarray(step))


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


class Chunk(NamedTuple):
    """Outcome of one chunk of training: the run, its report, and the score of each replica."""

    run: Run
    info: PyTree[np.ndarray]
    score: np.ndarray | None = None


class Progress(NamedTuple):
    """What callbacks get after every chunk; `info` holds means over the chunk for each replica.

    `total` is 0 where the number of steps is not known in advance.
    """

    step: int
    total: int
    info: PyTree[np.ndarray]
    score: np.ndarray | None
    seconds: float


class Callback:
    """Base class for observers of training. Override the methods you need."""

    def start(self, run: Run, total: int) -> None:
        """Begin: training goes from `run.step` to `total`."""

    def chunk(self, progress: Progress, run: Run) -> bool | None:
        """Handle a finished chunk of steps; return True to stop training."""

    def finish(self) -> None:
        """Finish: training has ended, for any reason."""


# What learners take: a callback, a function of the progress that returns True to stop, or several.
Callbacks = Callback | Callable[[Progress], Any] | Iterable[Any] | None


class FunctionCallback(Callback):
    """A function of the progress that returns True to stop, as a callback."""

    def __init__(self, function: Callable[[Progress], Any]) -> None:
        self.function = function

    def chunk(self, progress: Progress, run: Run) -> bool:
        return bool(self.function(progress))


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return a list of callbacks from one, several or none."""
    if callbacks is None:
        return []
    if isinstance(callbacks, Callback):
        return [callbacks]
    # A class is no callback yet, and calling one with the progress returns what looks like a wish
    # to stop; the parts of a text are texts again.
    if callable(callbacks) and not isinstance(callbacks, type):
        return [FunctionCallback(callbacks)]
    if not isinstance(callbacks, Iterable) or isinstance(callbacks, type | str | bytes):
        raise TypeError(
            "`callbacks` must be a Callback, a function of the progress, several of these or None, "
            f"but got {callbacks!r}."
        )
    return [callback for each in callbacks for callback in as_callbacks(each)]


@dataclass(frozen=True)
class Trained(Generic[State]):
    """How training ended."""

    run: Run[State]
    history: list[Progress]
    ending: Literal["finished", "stale", "callback", "interrupted"]


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. `trained` holds what was learned before it.

    It is raised, not swallowed, so that it also ends whatever training was a part of: a grid
    search, a sweep, a loop in a script. A learner that is trained interactively keeps `trained`
    before it lets the interrupt pass.
    """

    def __init__(self, trained: Trained) -> None:
        super().__init__(f"training was interrupted at step {int(trained.run.step)}")
        self.trained = trained


def train(
    learner: Steps,
    run: Run[State],
    data: PyTree | Callable[[Run[State]], PyTree],
    *,
    steps: int,
    batches: Batches | None = None,
    chunk: int = 500,
    evaluate: Callable[[State], Float[Array, " replicas"]] | None = None,
    patience: int | None = None,
    between: Callable[[Run[State]], Run[State]] | None = None,
    callbacks: Sequence[Callback] = (),
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
        compiles nothing. A function is called with the run before every chunk and returns the
        data of that chunk, such as what an agent has just experienced.
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
    between
        Called before every chunk with the run, returns the one that goes on, such as with more
        experts.
    callbacks
        Called after every chunk.

    Raises
    ------
    NonFiniteError
        When a loss or parameter stops being finite.
    TrainingInterrupted
        After Ctrl-C, with what was learned until then.
    """
    if (evaluate is None) != (run.best is None):
        raise ValueError(
            "`evaluate` must be given exactly when the run was started with keep_best."
        )
    seeds = np.asarray(jax.random.key_data(run.key)).tolist()
    # Only rows can be shared: what agents experience is not chosen by `batches`.
    mesh = None if batches is None or callable(data) else current_mesh()
    if mesh is not None:
        run, data = replicate(mesh, (run, data))

    def advance(run: Run[State]) -> Chunk | None:
        # Asked before the chunk: a run that was resumed may be stale already.
        if patience is not None and run.best and bool((run.best.stale >= patience).all()):
            return None
        if between is not None:
            run = between(run)
        done = int(run.step)
        # Always the rows for a full chunk: the last, shorter one is the same program.
        rows = None
        if batches is not None:
            rows = jax.device_put(batches(seeds, done, chunk))
        seen = data(run) if callable(data) else data
        return _chunk(learner, run, seen, rows, mesh, min(chunk, steps - done), evaluate)

    trained = run_chunks(advance, run, steps, callbacks)
    return trained if mesh is None else replace(trained, run=localise(trained.run))


def run_chunks(
    advance: Callable[[Run[State]], Chunk | None],
    run: Run[State],
    total: int | None = None,
    callbacks: Sequence[Callback] = (),
) -> Trained[State]:
    """Advance a run chunk by chunk until step `total`, or until `advance` returns None.

    After Ctrl-C `TrainingInterrupted` is raised.
    """
    history: list[Progress] = []
    ending: Literal["finished", "stale", "callback"] = "finished"
    with ExitStack() as finishing:
        finishing.callback(forget_programs)
        for callback in callbacks:
            callback.start(run, total or 0)
            finishing.callback(callback.finish)
        try:
            while total is None or int(run.step) < total:
                began = time.perf_counter()
                made = advance(run)
                if made is None:
                    ending = "stale"
                    break
                run, info, score = made
                seconds = time.perf_counter() - began
                progress = Progress(int(run.step), total or 0, info, score, seconds)
                history.append(progress)
                votes = [callback.chunk(progress, run) for callback in callbacks]
                if any(votes):
                    ending = "callback"
                    break
        except KeyboardInterrupt as interrupt:
            raise TrainingInterrupted(Trained(run, history, "interrupted")) from interrupt
    return Trained(run, history, ending)


def _chunk(
    learner: Steps,
    run: Run[State],
    data: PyTree,
    rows: PyTree[Array],
    mesh: Mesh | None,
    n_steps: int,
    evaluate: Callable[[State], Float[Array, " replicas"]] | None,
) -> Chunk:
    """Do the steps of one chunk, check that all is finite, and evaluate."""
    # A kernel runs on one device.
    in_turn = mesh is None and _is_small(run, data, rows)
    program = _advance_by_loops if in_turn or _is_narrow(run.state) else _advance_by_library
    if program is _advance_by_library and rows is None:
        program = _advance_for_long  # an agent, whose steps are many gradient steps each
    advance = partial(program, learner, data, rows, mesh, in_turn)
    try:
        new, info, finite = advance(run, jnp.asarray(0), jnp.asarray(n_steps))
    except jax.errors.JaxRuntimeError:
        if not in_turn:
            raise
        # A kernel that this version of the compiler cannot make: a list of kernels will do.
        advance = partial(_advance_by_library, learner, data, rows, None, False)
        new, info, finite = advance(run, jnp.asarray(0), jnp.asarray(n_steps))
    if not finite:
        raise first_non_finite(advance, run, n_steps)
    score = None
    if evaluate is not None and new.best is not None:
        scores = evaluate(new.state)
        best = new.best.update(scores, new.state, new.step)
        new, score = eqx.tree_at(lambda r: r.best, new, best), np.asarray(scores)
    return Chunk(new, jax.tree.map(np.asarray, info), score)


def _advance(
    learner: Steps,
    data: PyTree,
    rows: PyTree[Array],
    mesh: Mesh | None,
    in_turn: bool,
    run: Run,
    first: Int[Array, ""],
    n_steps: Int[Array, ""],
) -> tuple[Run, PyTree, Array]:
    """Do `n_steps` steps of a chunk, from its step `first` on.

    Return the new run, the mean info and whether all of it is finite. The number of steps is
    traced: the last, shorter chunk of a run is the same program. Replicas run side by side, or
    `in_turn`; the devices of a mesh share the rows of a step.
    """
    arrays, static = eqx.partition(run.state, eqx.is_array)

    def replica(start: tuple[Array, Array, PyTree]) -> tuple[PyTree, PyTree]:
        number, key, arrays = start

        # Traced once, for its shapes and for the loop.
        @partial(jax.jit, inline=True)
        def step(i: Array, arrays: PyTree) -> tuple[PyTree, PyTree]:
            batch = data
            if rows is not None:
                # Step by step: the rows of all steps at once are too much for a kernel.
                batch = take(data, jax.tree.map(lambda leaf: leaf[number, first + i], rows))
            state, info = learner.step(
                jax.random.fold_in(key, run.step + i),
                eqx.combine(arrays, static),
                share_rows(mesh, batch),
            )
            return keep_replicated(mesh, (eqx.filter(state, eqx.is_array), info))

        def body(i: Array, carry: tuple[PyTree, PyTree]) -> tuple[PyTree, PyTree]:
            arrays, means = carry
            arrays, info = step(i, arrays)
            return arrays, jax.tree.map(lambda mean, new: mean + new / n_steps, means, info)

        _, like = jax.eval_shape(step, jnp.asarray(0), arrays)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.result_type(leaf, float)), like)
        return jax.lax.fori_loop(0, n_steps, body, (arrays, zeros))

    every = one_kernel(partial(jax.lax.map, replica)) if in_turn else jax.vmap(replica)
    arrays, info = every((jnp.arange(len(run.key)), run.key, arrays))
    new = Run(run.key, run.step + n_steps, eqx.combine(arrays, static), run.best)
    # As one vector: the compiler would take its time for as many checks as there are arrays.
    everything = jnp.concatenate([jnp.ravel(leaf) for leaf in _floats((new.state, info))])
    finite = jnp.isfinite(everything).all()
    return new, info, finite


# How matrices are multiplied: by XLA's library, or by plain loops.
_advance_by_library, _advance_by_loops = compiled(_advance), compiled_with_kernels(_advance)
_advance_for_long = compiled_for_long(_advance)


def _is_small(run: Run, data: PyTree, rows: PyTree[Array]) -> bool:
    """Return whether one replica's step is so small that a loop of them makes a good kernel."""
    if isinstance(data, Source) or rows is None:
        return False
    batch = sum(leaf.nbytes / len(leaf) for leaf in jax.tree.leaves(data)) * rows.shape[-1]
    total = sum(leaf.nbytes for leaf in _floats(run.state))
    state = total / len(run.key)
    return state <= SMALL_STATE and batch <= SMALL_BATCH and total <= SMALL_TOTAL


def _is_narrow(state: PyTree) -> bool:
    """Return whether plain loops multiply all matrices of a state at least as fast as a library."""
    return all(min(leaf.shape[-2:], default=0) < NARROW for leaf in _floats(state))


def _floats(tree: PyTree) -> list[Array]:
    return [leaf for leaf in jax.tree.leaves(tree) if eqx.is_inexact_array(leaf)]


@compiled
def _better(
    known: Best[State], score: Float[Array, " replicas"], state: State, step: Int[Array, ""]
) -> Best[State]:
    """Return the better of two for each replica.

    One program: array by array a first fit would compile one for every shape.
    """
    better = score > known.score

    def choose(new: Any, old: Any) -> Any:
        """Choose whole replicas; works for typed keys as well."""
        if not eqx.is_array(new):
            return new
        return jnp.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return Best(
        jnp.where(better, score, known.score),
        jax.tree.map(choose, state, known.state),
        jnp.where(better, step, known.step),
        jnp.where(better, 0, known.stale + 1),
    )
