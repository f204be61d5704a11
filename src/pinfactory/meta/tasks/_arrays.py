"""Classification tasks from arrays: each is about a few of many classes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ._host import HostData
from ._members import Members
from ._protocol import Episode, Samples


class ArrayRecipe(NamedTuple):
    """Rows of the samples, one line for each class of the task."""

    support: Array | np.ndarray
    query: Array | np.ndarray


class ArrayTasks(eqx.Module):
    """N-way K-shot tasks from samples of many classes.

    A task takes `ways` classes in random order, calls them 0, 1, …, and shows `shots` samples of
    each. Test tasks are about classes that training never saw.

    Parameters
    ----------
    X
        Samples, with a leading axis.
    y
        Their labels, of any type.
    ways
        Classes in a task.
    shots, queries
        Samples of each class in a support set and in a query set.
    splits
        Labels for "train", "validation" and "test"; drawn at random if not given.
    validation, test
        Shares of the classes for validation and test, where `splits` is not given.
    seed
        Seed of the random split.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> X, y = load_digits(return_X_y=True)
    >>> tasks = ArrayTasks(X, y, ways=2, shots=5, test=0.3)
    >>> len(tasks.classes("test"))
    3
    """

    x: Float[Array, "n ..."]
    ways: int = eqx.field(static=True)
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    _members: Any = eqx.field(static=True)

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        ways: int,
        shots: int,
        queries: int = 10,
        splits: Mapping[str, Sequence[Any]] | None = None,
        validation: float = 0.0,
        test: float = 0.2,
        seed: int = 0,
    ) -> None:
        X, y = np.asarray(X, np.float32), np.asarray(y)
        if len(X) != len(y) or y.ndim != 1:
            raise ValueError(
                f"`y` must hold one label for each of {len(X)} samples, but got shape {y.shape}."
            )
        for name, value, lowest in (
            ("ways", ways, 2),
            ("shots", shots, 1),
            ("queries", queries, 1),
        ):
            if value < lowest:
                raise ValueError(f"`{name}` must be at least {lowest}, but got {value}.")
        members = Members(
            "class", y, shots + queries, splits, (validation, test), seed, fewest=ways
        )
        for part, classes in members.split.items():
            if 0 < len(classes) < ways or (part == "train" and not len(classes)):
                raise ValueError(
                    f"`ways` must be at most the {len(classes)} classes for {part}, but got {ways}."
                )
        self.x, self._members = jax.device_put(X), HostData(members)
        self.ways, self.shots, self.queries = ways, shots, queries

    def classes(self, split: str = "train") -> np.ndarray:
        """Return the labels of a split."""
        return self._members.value.named(split)

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> ArrayRecipe:
        """Return which samples of which classes the tasks are about."""
        members: Members = self._members.value
        classes = members.codes(split)
        # Ranks of random numbers: a draw without replacement for all tasks at once.
        chosen = classes[random.random((n_tasks, len(classes))).argsort(axis=1)[:, : self.ways]]
        rows = members.draw(random, chosen, self.shots + self.queries)
        return ArrayRecipe(rows[:, :, : self.shots], rows[:, :, self.shots :])

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of all classes, one class after the other."""
        return Episode(self._samples(recipe.support), self._samples(recipe.query))

    def _samples(self, rows: Int[Array, "ways k"]) -> Samples:
        labels = jnp.repeat(jnp.arange(self.ways), rows.shape[1])
        return Samples(self.x[rows.ravel()], labels)
