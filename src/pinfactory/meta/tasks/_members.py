"""What tasks from arrays keep on the host: their samples' places, and who is held out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

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


def split_names(
    names: np.ndarray,
    splits: Mapping[str, Sequence[Any]] | None,
    shares: Sequence[float],
    seed: int,
    fewest: int,
) -> dict[str, np.ndarray]:
    """Return the positions in `names` of every split: as the user says, or drawn at random.

    Parameters
    ----------
    names
        All that occur, sorted.
    splits
        The names of each split by the user, or None.
    shares
        Shares of validation and test where the user gave no splits.
    seed
        Seed of the random split.
    fewest
        How many a random split must have, if it has any.
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


class Members:
    """Which samples belong to whom.

    Parameters
    ----------
    kind
        What samples belong to, "class" or "group", for messages.
    labels
        To whom each sample belongs.
    n_needed
        How many samples each must have.
    splits, shares, seed, fewest
        See `split_names`.
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
        self.split = split_names(self.names, splits, shares, seed, fewest)
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
