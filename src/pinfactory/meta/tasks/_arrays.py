"""Tasks from arrays: classification among a few of many classes, regression in one group."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from ._members import HostData, Members
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


class GroupedTasks(eqx.Module):
    """Regression tasks from samples in groups, such as patients, machines or places.

    A task is one group: it shows `shots` of its samples and asks for others. Test tasks are groups
    that training never saw.

    Parameters
    ----------
    X, y
        Samples and targets, with a leading axis of samples.
    groups
        The group of each sample, of any type.
    shots, queries
        Samples in a support set and in a query set.
    splits, validation, test, seed
        As in `ArrayTasks`, for groups.

    Examples
    --------
    >>> import numpy as np
    >>> X, place = np.linspace(0, 1, 200)[:, None], np.repeat(np.arange(10), 20)
    >>> tasks = GroupedTasks(X, np.sin(X + place[:, None]), place, shots=5)
    >>> len(tasks.groups("train"))
    8
    """

    x: Float[Array, "n ..."]
    y: Float[Array, "n d"]
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    _members: Any = eqx.field(static=True)

    def __init__(
        self,
        X: Any,
        y: Any,
        groups: Any,
        *,
        shots: int,
        queries: int = 10,
        splits: Mapping[str, Sequence[Any]] | None = None,
        validation: float = 0.0,
        test: float = 0.2,
        seed: int = 0,
    ) -> None:
        X, y, groups = np.asarray(X, np.float32), np.asarray(y, np.float32), np.asarray(groups)
        if not len(X) == len(y) == len(groups):
            raise ValueError(
                "`X`, `y` and `groups` must have the same length, but got "
                f"{len(X)}, {len(y)} and {len(groups)}."
            )
        if shots < 1 or queries < 1:
            raise ValueError(
                f"`shots` and `queries` must be at least 1, but got {shots} and {queries}."
            )
        self.x, self.y = jax.device_put(X), jax.device_put(y.reshape(len(y), -1))
        self.shots, self.queries = shots, queries
        members = Members(
            "group", groups, shots + queries, splits, (validation, test), seed, fewest=1
        )
        self._members = HostData(members)

    def groups(self, split: str = "train") -> np.ndarray:
        """Return the names of the groups of a split."""
        return self._members.value.named(split)

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> ArrayRecipe:
        """Return which samples of which groups the tasks are about."""
        members: Members = self._members.value
        groups = members.codes(split)
        chosen = groups[random.integers(len(groups), size=n_tasks)]
        rows = members.draw(random, chosen, self.shots + self.queries)
        return ArrayRecipe(rows[:, : self.shots], rows[:, self.shots :])

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of one group."""

        def samples(rows: Array) -> Samples:
            return Samples(self.x[rows], self.y[rows])

        return Episode(samples(recipe.support), samples(recipe.query))
