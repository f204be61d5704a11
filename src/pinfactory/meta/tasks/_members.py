"""Samples by the class or group they belong to, some of which are held out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from ._host import split_names


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
