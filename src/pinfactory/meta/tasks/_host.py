"""What tasks from arrays keep on the host: their samples' places, and who is held out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
