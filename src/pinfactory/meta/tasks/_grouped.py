"""Regression tasks from arrays: each is about one group of samples."""

from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from ._arrays import ArrayRecipe
from ._host import HostData
from ._members import Members
from ._protocol import Episode, Samples


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
