"""What a distribution of tasks is: recipes drawn on the host, built into samples when compiled.

A recipe is a few small arrays (an amplitude and a phase, or the numbers of some images). NumPy
draws recipes on the host, because random numbers take JAX seconds to compile; `build` turns one
recipe into a task's samples and is compiled into the learner's step.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree


class Samples(NamedTuple):
    """Inputs and targets, with a leading axis of samples."""

    x: Array
    y: Array


class Episode(NamedTuple):
    """One task: what an expert adapts to, and what it is judged by afterwards."""

    support: Samples
    query: Samples


@runtime_checkable
class Tasks(Protocol):
    """A distribution of tasks: an Equinox module whose arrays are passed to compiled steps."""

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> PyTree:
        """Return the recipes of `n_tasks` tasks: NumPy arrays with a leading axis of tasks.

        `split` is "train", "validation" or "test".
        """
        ...

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of the task of one recipe; pure, and compiled by the caller.

        Pairs `((x, y), (x, y))` will do, and numbers y of shape (samples,) for one target.
        """
        ...


WANTED = (
    "an Episode(support, query) of Samples(x, y) for one task, with x of shape (samples, features) "
    "or (samples, rows, columns), and y of shape (samples,) with whole numbers for classes, or of "
    "shape (samples,) or (samples, targets) with real numbers; support and query have at least one "
    "sample each and differ in their number alone"
)


def draw_recipes(
    tasks: Any, random: np.random.Generator, n_tasks: int, split: str = "train"
) -> PyTree:
    """Return the recipes of `n_tasks` tasks, after checking that there are as many.

    Raises
    ------
    TypeError
        If these are no tasks.
    ValueError
        If a recipe is not made of arrays with a leading axis of tasks.
    """
    if not isinstance(tasks, Tasks) or isinstance(tasks, type):
        raise TypeError(
            "`tasks` must be a distribution of tasks with the methods `draw` and `build`, such "
            f"as ArrayTasks(X, y, ways=2, shots=5), but got {_named(tasks)}."
        )
    recipes = tasks.draw(random, n_tasks, split)
    leaves = jax.tree.leaves(recipes)
    if not leaves or any(np.shape(leaf)[:1] != (n_tasks,) or _no_numbers(leaf) for leaf in leaves):
        raise ValueError(
            f"`draw` must return arrays of numbers with a leading axis of {n_tasks} tasks, "
            f"but got {_described(recipes)}."
        )
    return recipes


def task_subjects(tasks: Tasks, recipes: PyTree) -> Int[np.ndarray, " n"] | None:
    """Return a number for each task, the same for tasks about the same thing.

    Tasks say so by a method `subjects(recipes)`; without one they are independent: None.
    """
    method = getattr(tasks, "subjects", None)
    return None if method is None else method(recipes)


def as_episode(built: Any) -> Episode:
    """Return what `build` returned for one task as an episode, targets as vectors.

    Raises
    ------
    ValueError
        If it is something else, with the shapes that are wanted.
    """
    try:
        support, query = built
        parts = [Samples(*map(jnp.asarray, part)) for part in (support, query)]
    except (TypeError, ValueError) as error:
        raise ValueError(f"`build` must return {WANTED}, but got {_described(built)}.") from error
    alike = [[(a.shape[1:], jnp.issubdtype(a.dtype, jnp.floating)) for a in p] for p in parts]
    if any(not _sound(part) for part in parts) or alike[0] != alike[1]:
        raise ValueError(f"`build` must return {WANTED}, but got {_described(built)}.")
    return Episode(*(Samples(part.x, _vectors(part.y)) for part in parts))


def _sound(part: Samples) -> bool:
    numbers = jnp.issubdtype(part.y.dtype, jnp.floating)
    return (
        part.x.ndim >= 2
        and len(part.x) > 0
        and jnp.issubdtype(part.x.dtype, jnp.floating)
        and part.y.shape[:1] == part.x.shape[:1]
        and part.y.ndim in ((1, 2) if numbers else (1,))
    )


def _named(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def _no_numbers(leaf: Any) -> bool:
    """Return whether an array of NumPy holds text or objects, which JAX does not know."""
    return isinstance(leaf, np.ndarray) and leaf.dtype.kind not in "biuf"


def _vectors(y: Array) -> Array:
    return y[:, None] if y.ndim == 1 and jnp.issubdtype(y.dtype, jnp.floating) else y


def _described(value: Any) -> str:
    """Return the type, and the shapes and element types of the arrays in it."""
    leaves = jax.tree.leaves(value)
    arrays = [
        f"{a.dtype if _no_numbers(a) else jnp.result_type(a)}{list(np.shape(a))}"
        for a in leaves
        if hasattr(a, "shape")
    ]
    return f"{type(value).__name__} with {', '.join(arrays) or 'no arrays'}"
