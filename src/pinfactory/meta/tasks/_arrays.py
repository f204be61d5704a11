"""Tasks from arrays: classification among a few of many classes, regression in one group."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from pinfactory import settings as check

from ._protocol import Episode, Samples

SPLITS = ("train", "validation", "test")


class HostData:
    """Values that only `draw` uses.

    They play no part in a compiled program, so to JAX any are as good as any others: tasks from
    other data of the same shape compile nothing.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HostData)

    def __hash__(self) -> int:
        return hash(HostData)


class ArrayRecipe(NamedTuple):
    """Rows of the samples, one line for each class of the task."""

    support: Array | np.ndarray
    query: Array | np.ndarray


class _RowTasks(eqx.Module):
    """Tasks about rows of an array, of classes or groups some of which are held out."""

    x: Float[Array, "n ..."]
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    _members: Any = eqx.field(static=True)

    def _rows(self, random: np.random.Generator, chosen: Int[np.ndarray, "..."]) -> ArrayRecipe:
        """Return rows of the classes or groups that were chosen."""
        rows = self._members.value.draw(random, chosen, self.shots + self.queries)
        return ArrayRecipe(rows[..., : self.shots], rows[..., self.shots :])


class ArrayTasks(_RowTasks):
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

    ways: int = eqx.field(static=True)

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
        ways, shots = check.integer("ways", ways, 2), check.integer("shots", shots, 1)
        queries = check.integer("queries", queries, 1)
        shares = (validation, test)
        members = Members("class", y, shots + queries, splits, shares, seed, fewest=ways)
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
        classes = self._members.value.codes(split)
        # Ranks of random numbers: a draw without replacement for all tasks at once.
        chosen = classes[random.random((n_tasks, len(classes))).argsort(axis=1)[:, : self.ways]]
        return self._rows(random, chosen)

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of all classes, one class after the other."""

        def samples(rows: Int[Array, "ways k"]) -> Samples:
            labels = jnp.repeat(jnp.arange(self.ways), rows.shape[1])
            return Samples(self.x[rows.ravel()], labels)

        return Episode(samples(recipe.support), samples(recipe.query))


class GroupedTasks(_RowTasks):
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

    y: Float[Array, "n d"]

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
        shots, queries = check.integer("shots", shots, 1), check.integer("queries", queries, 1)
        shares = (validation, test)
        members = Members("group", groups, shots + queries, splits, shares, seed, fewest=1)
        self.x, self.y = jax.device_put(X), jax.device_put(y.reshape(len(y), -1))
        self.shots, self.queries, self._members = shots, queries, HostData(members)

    def groups(self, split: str = "train") -> np.ndarray:
        """Return the names of the groups of a split."""
        return self._members.value.named(split)

    def draw(self, random: np.random.Generator, n_tasks: int, split: str = "train") -> ArrayRecipe:
        """Return which samples of which groups the tasks are about."""
        groups = self._members.value.codes(split)
        return self._rows(random, groups[random.integers(len(groups), size=n_tasks)])

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return the samples of one group."""

        def samples(rows: Array) -> Samples:
            return Samples(self.x[rows], self.y[rows])

        return Episode(samples(recipe.support), samples(recipe.query))


class Members:
    """Which samples belong to which class or group, as `kind` says, and which of these to a split.

    Each must have `n_needed` samples; for the rest see `_split`.
    """

    def __init__(
        self,
        kind: str,
        labels: np.ndarray,
        n_needed: int,
        splits: Mapping[str, Sequence[Any]] | None,
        shares: Sequence[float],
        seed: int,
        fewest: int,
    ) -> None:
        self.kind = kind
        self.names, codes = np.unique(labels, return_inverse=True)
        self.rows = [np.flatnonzero(codes == code) for code in range(len(self.names))]
        self.split = _split(self.names, splits, shares, seed, fewest)
        for code in np.concatenate(list(self.split.values())):
            if len(self.rows[code]) < n_needed:
                raise ValueError(
                    f"every {kind} must have at least shots + queries = {n_needed} samples, but "
                    f"{kind} {self.names[code]!r} has {len(self.rows[code])}."
                )

    def named(self, split: str) -> np.ndarray:
        """Return the names of a split."""
        return self.names[self.split[split]]

    def codes(self, split: str) -> Int[np.ndarray, " n"]:
        """Return the numbers of a split, which must have some."""
        if not len(self.split[split]):
            raise ValueError(
                f"`split` must be one that holds a {self.kind}, but got {split!r}, which is empty."
            )
        return self.split[split]

    def draw(
        self, random: np.random.Generator, chosen: Int[np.ndarray, "..."], n_samples: int
    ) -> Int[np.ndarray, "... n_samples"]:
        """Return rows of those chosen, without replacement."""
        rows = np.empty((*chosen.shape, n_samples), np.int32)
        for code in np.unique(chosen):
            places, members = np.nonzero(chosen == code), self.rows[code]
            # Ranks of random numbers: a draw for all places at once.
            order = random.random((len(places[0]), len(members))).argsort(axis=1)[:, :n_samples]
            rows[places] = members[order]
        return rows


def _split(
    names: np.ndarray,
    splits: Mapping[str, Sequence[Any]] | None,
    shares: Sequence[float],
    seed: int,
    fewest: int,
) -> dict[str, np.ndarray]:
    """Return the positions in `names` of every split: as the user says, or drawn at random.

    `shares` are those of validation and test; a random split that has any has `fewest` at least.
    """
    if splits is None:
        order = np.random.default_rng(seed).permutation(len(names))
        n_validation, n_test = (
            max(round(share * len(names)), fewest) if share > 0 else 0 for share in shares
        )
        if len(names) - n_validation - n_test < fewest:
            raise ValueError(
                f"`validation` and `test` must leave at least {fewest} of {len(names)} for "
                f"training, but got {tuple(shares)}."
            )
        parts = np.split(order, [n_test, n_test + n_validation])
        return {"test": parts[0], "validation": parts[1], "train": parts[2]}
    if strange := sorted(set(splits) - set(SPLITS)):
        raise ValueError(f"`splits` must have the keys {SPLITS}, but got {strange}.")
    positions = {name: i for i, name in enumerate(names.tolist())}
    found = {}
    for split in SPLITS:
        wanted = list(splits.get(split, ()))
        if never := [name for name in wanted if name not in positions]:
            raise ValueError(
                f"`splits[{split!r}]` must name what occurs in the data, but {never} never do."
            )
        found[split] = np.asarray([positions[name] for name in wanted], int)
    return found
