"""Few-shot tasks about handwritten characters (Lake et al. 2015; Section 6.2 of the paper)."""

import os
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt8

from pinfactory import settings as check

from ._arrays import SPLITS, HostData
from ._protocol import Episode, Samples
from .omniglot_archives import DRAWINGS, load

# Characters for training, validation and test.
SIZES = {"paper": (1223, 100, 300), "vinyals": (1028, 172, 423)}
TURNS = 4


class OmniglotRecipe(NamedTuple):
    """Which drawings a task shows, by how many quarter turns, and their labels."""

    drawing: Array | np.ndarray
    turns: Array | np.ndarray
    label: Array | np.ndarray


class Omniglot(eqx.Module):
    """Tasks about handwritten characters that training never saw.

    With protocol "paper" a task has two classes: label 1 is one character, `shots` drawings of
    it, and label 0 is `shots` drawings of any other characters. With protocol "vinyals" a task
    has `ways` characters with `shots` drawings each. Positives come first in the samples.

    The archives `images_background.zip` and `images_evaluation.zip` are read from `folder`, else
    from the folder that the environment variable PINFACTORY_OMNIGLOT names, else they are fetched
    into the user's cache. They are checked, and kept in the cache as arrays.

    Parameters
    ----------
    ways
        Classes in a task; the paper's protocol has two.
    shots
        Drawings of each class in a support set.
    protocol
        "paper": 1,223 characters for training, 100 for validation, 300 for test. "vinyals":
        1,028, 172 and 423, as Vinyals et al. (2016) have it. Characters are split at random.
    folder
        Where the archives are.
    rotations
        Whether drawings turned by 90, 180 and 270 degrees count as "classes" of their own, as
        more drawings of the same class ("augmentation", the words of the paper's appendix), or
        do not occur ("none").
    queries
        Drawings of each class in a query set: as many as `shots` in the paper's protocol, 15 in
        the other, if not given.
    preprocessing
        "centred" cuts a drawing out, scales its longer side to 22 pixels and puts it in the
        middle of 28 × 28 pixels; "resized" scales the whole sheet.
    seed
        Seed of the split.
    """

    images: UInt8[Array, "drawings side side"]
    ways: int = eqx.field(static=True)
    shots: int = eqx.field(static=True)
    queries: int = eqx.field(static=True)
    protocol: str = eqx.field(static=True)
    rotations: str = eqx.field(static=True)
    _alphabets: Any = eqx.field(static=True)
    _split: Any = eqx.field(static=True)

    def __init__(
        self,
        ways: int = 2,
        shots: int = 1,
        protocol: str = "paper",
        *,
        folder: str | os.PathLike[str] | None = None,
        rotations: str = "classes",
        queries: int | None = None,
        preprocessing: str = "centred",
        seed: int = 0,
    ) -> None:
        check.choice("protocol", protocol, list(SIZES))
        check.choice("rotations", rotations, ("classes", "augmentation", "none"))
        check.choice("preprocessing", preprocessing, ("centred", "resized"))
        if queries is None:
            queries = shots if protocol == "paper" else 15
        ways, shots = check.integer("ways", ways, 2), check.integer("shots", shots, 1)
        queries = check.integer("queries", queries, 1)
        if protocol == "paper" and ways != 2:
            raise ValueError(
                f"`ways` must be 2 in the paper's protocol, but got {ways}; use "
                "protocol='vinyals' for more."
            )
        if shots + queries > (most := _n_variants(rotations)):
            raise ValueError(
                f"`shots` + `queries` must be at most the {most} drawings of a class, but got "
                f"{shots} + {queries}."
            )
        characters = load(folder, preprocessing)
        order = np.random.default_rng(seed).permutation(len(characters.images))
        ends = np.cumsum(SIZES[protocol])
        parts = dict(zip(SPLITS, np.split(order, ends[:-1]), strict=True))
        self.images = jax.device_put(characters.images.reshape(-1, *characters.images.shape[2:]))
        self.ways, self.shots, self.queries = ways, shots, queries
        self.protocol, self.rotations = protocol, rotations
        self._alphabets, self._split = HostData(characters.alphabets), HostData(parts)

    def characters(self, split: str = "train") -> Int[np.ndarray, " c"]:
        """Return the numbers of the characters of a split."""
        return self._split.value[check.choice("split", split, SPLITS)]

    def labelled(
        self, split: str = "train"
    ) -> tuple[UInt8[np.ndarray, "n side side"], Int[np.ndarray, " n"]]:
        """Return all images of a split, and their classes as numbers from 0 on."""
        drawings = self.characters(split)[:, None] * DRAWINGS + np.arange(DRAWINGS)
        images = np.asarray(self.images)[drawings]
        n_turns = 1 if self.rotations == "none" else TURNS
        turned = np.stack([np.rot90(images, t, axes=(2, 3)) for t in range(n_turns)], axis=1)
        labels = np.arange(len(images))[:, None]
        if self.rotations == "classes":
            labels = labels * TURNS + np.arange(TURNS)
        every = np.broadcast_to(labels[..., None], turned.shape[:3])
        return turned.reshape(-1, *images.shape[2:]), every.ravel().astype(np.int32)

    @property
    def alphabets(self) -> np.ndarray:
        """The alphabet of every character, by the character's number."""
        return self._alphabets.value

    def draw(
        self, random: np.random.Generator, n_tasks: int, split: str = "train"
    ) -> tuple[OmniglotRecipe, OmniglotRecipe]:
        """Return recipes of support and query sets."""
        characters = self.characters(split)
        n, n_variants = self.shots + self.queries, _n_variants(self.rotations)
        # A class is a position among the characters and, if rotations are classes, a turn.
        n_classes = len(characters) * (TURNS if self.rotations == "classes" else 1)
        if self.protocol == "paper":
            target = random.integers(n_classes, size=(n_tasks, 1))
            # Any class but the target.
            other = (target + random.integers(1, n_classes, size=(n_tasks, n))) % n_classes
            classes = np.concatenate([np.repeat(target, n, axis=1), other], axis=1)
            one = _without_replacement(random, n_tasks, n_variants, n)
            variant = np.concatenate([one, random.integers(n_variants, size=one.shape)], axis=1)
            labels = np.repeat([1, 0], n)
        else:
            chosen = _without_replacement(random, n_tasks, n_classes, self.ways)
            classes = np.repeat(chosen, n, axis=1)
            variant = _without_replacement(random, n_tasks * self.ways, n_variants, n)
            variant = variant.reshape(n_tasks, -1)
            labels = np.repeat(np.arange(self.ways), n)
        if self.rotations == "classes":
            classes, turns = np.divmod(classes, TURNS)
        else:
            turns = variant // DRAWINGS
        recipe = OmniglotRecipe(
            (characters[classes] * DRAWINGS + variant % DRAWINGS).astype(np.int32),
            turns.astype(np.int32),
            np.tile(labels.astype(np.int32), (n_tasks, 1)),
        )
        in_support = np.arange(len(labels)) % n < self.shots
        return (
            OmniglotRecipe(*(leaf[:, in_support] for leaf in recipe)),
            OmniglotRecipe(*(leaf[:, ~in_support] for leaf in recipe)),
        )

    def subjects(
        self, recipes: tuple[OmniglotRecipe, OmniglotRecipe]
    ) -> Int[np.ndarray, " n"] | None:
        """Return the character that each task is about; None if it is about several."""
        if self.protocol != "paper":
            return None
        return np.asarray(recipes[0].drawing)[:, 0] // DRAWINGS

    def build(self, recipe: PyTree[Array]) -> Episode:
        """Return images with ink 1 on ground 0, and labels."""
        support, query = recipe
        return Episode(self._samples(support), self._samples(query))

    def _samples(self, recipe: OmniglotRecipe) -> Samples:
        images = self.images[recipe.drawing]
        return Samples(
            turned(images.astype(jnp.float32) / 255.0, jnp.asarray(recipe.turns)),
            jnp.asarray(recipe.label),
        )


def _n_variants(rotations: str) -> int:
    """Return how many images a class has."""
    return DRAWINGS * (TURNS if rotations == "augmentation" else 1)


def turned(images: Float[Array, "n s s"], turns: Int[Array, " n"]) -> Float[Array, "n s s"]:
    """Turn every image by its own number of quarter turns, counter-clockwise."""
    turns = turns[:, None, None]
    half = jnp.where(turns % TURNS >= 2, images[:, ::-1, ::-1], images)
    return jnp.where(turns % 2 == 1, jnp.rot90(half, axes=(1, 2)), half)


def _without_replacement(
    random: np.random.Generator, n_rows: int, n_items: int, n: int
) -> Int[np.ndarray, "rows n"]:
    """Draw n of the items, for every row anew."""
    if n_items < 100:
        # Ranks of random numbers are a random order.
        return random.random((n_rows, n_items)).argsort(axis=1)[:, :n]
    return np.stack([random.choice(n_items, n, replace=False) for _ in range(n_rows)])
