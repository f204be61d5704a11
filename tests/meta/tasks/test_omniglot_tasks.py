"""Tasks from the real archives; skipped where they are not."""

import equinox as eqx
import jax
import numpy as np
import pytest

from archives import FOLDER, needs_archives
from pinfactory.meta.tasks import Omniglot
from pinfactory.meta.tasks._omniglot import turned
from pinfactory.meta.tasks.omniglot_archives import load

pytestmark = needs_archives


def identity(tasks: Omniglot) -> tuple[np.ndarray, np.ndarray]:
    """Return character and turns of every sample of 500 tasks, support before query."""
    support, query = tasks.draw(np.random.default_rng(0), 500, "test")
    drawing = np.concatenate([support.drawing, query.drawing], axis=1)
    return drawing, np.concatenate([support.turns, query.turns], axis=1)


def positives(tasks: Omniglot) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    drawing, turns = identity(tasks)
    k = tasks.shots
    positive = np.isin(np.arange(4 * k) // k, (0, 2))
    return drawing[:, positive], turns[:, positive], drawing[:, ~positive], turns[:, ~positive]


def test_the_archives_hold_1623_characters_of_50_alphabets() -> None:
    characters = load(FOLDER, "centred")
    assert characters.images.shape == (1623, 20, 28, 28)
    assert len(np.unique(characters.alphabets)) == 50


@pytest.mark.parametrize(
    ("protocol", "sizes"), [("paper", (1223, 100, 300)), ("vinyals", (1028, 172, 423))]
)
def test_splits_share_no_character(protocol: str, sizes: tuple[int, ...]) -> None:
    tasks = Omniglot(protocol=protocol, folder=FOLDER)
    parts = [tasks.characters(split) for split in ("train", "validation", "test")]
    assert tuple(map(len, parts)) == sizes
    assert len(np.unique(np.concatenate(parts))) == 1623


def test_positives_are_distinct_drawings_of_one_turned_character() -> None:
    tasks = Omniglot(shots=5, folder=FOLDER)
    drawing, turns, others, other_turns = positives(tasks)
    character = drawing // 20
    assert (character == character[:, :1]).all()
    recipes = tasks.draw(np.random.default_rng(0), 500, "test")
    np.testing.assert_array_equal(tasks.subjects(recipes), character[:, 0])
    assert (turns == turns[:, :1]).all()
    assert all(len(set(row)) == 10 for row in drawing.tolist())
    same = (others // 20 == character[:, :1]) & (other_turns == turns[:, :1])
    assert not same.any()
    assert np.isin(drawing // 20, tasks.characters("test")).all()
    assert np.isin(others // 20, tasks.characters("test")).all()


def test_rotations_as_augmentation_mix_turns_within_a_class() -> None:
    tasks = Omniglot(shots=10, rotations="augmentation", folder=FOLDER)
    drawing, turns, others, _ = positives(tasks)
    character = drawing // 20
    assert (character == character[:, :1]).all()
    np.testing.assert_allclose(np.bincount(turns.ravel()) / turns.size, 0.25, atol=0.02)
    images = drawing * 4 + turns
    assert all(len(set(row)) == 20 for row in images.tolist())
    assert not (others // 20 == character[:, :1]).any()


def test_without_rotations_no_drawing_is_turned() -> None:
    assert not identity(Omniglot(shots=2, rotations="none", folder=FOLDER))[1].any()


def test_many_ways_have_distinct_classes() -> None:
    tasks = Omniglot(20, 1, "vinyals", folder=FOLDER)
    drawing, turns = identity(tasks)
    classes = (drawing // 20 * 4 + turns)[:, :20]
    assert all(len(set(row)) == 20 for row in classes.tolist())
    assert drawing.shape == (500, 20 + 20 * 15)


def test_build_shows_the_drawings_with_their_labels() -> None:
    tasks = Omniglot(shots=3, folder=FOLDER)
    support, query = jax.tree.map(
        lambda leaf: leaf[0], tasks.draw(np.random.default_rng(1), 1, "train")
    )
    episode = eqx.filter_jit(Omniglot.build)(tasks, (support, query))
    assert episode.support.y.tolist() == episode.query.y.tolist() == [1, 1, 1, 0, 0, 0]
    flat = load(FOLDER, "centred").images.reshape(-1, 28, 28)
    for recipe, samples in ((support, episode.support), (query, episode.query)):
        expected = [np.rot90(flat[d], t) for d, t in zip(recipe.drawing, recipe.turns, strict=True)]
        np.testing.assert_allclose(samples.x, np.stack(expected) / 255.0, rtol=1e-6)


def test_the_same_seed_draws_the_same_tasks() -> None:
    tasks = Omniglot(folder=FOLDER)
    one, two = (tasks.draw(np.random.default_rng(3), 10) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_images_turn_by_their_own_number_of_quarters() -> None:
    images = np.random.default_rng(0).random((8, 5, 5)).astype(np.float32)
    turns = np.arange(8) % 4
    expected = [np.rot90(image, t) for image, t in zip(images, turns, strict=True)]
    np.testing.assert_array_equal(turned(jax.device_put(images), jax.device_put(turns)), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ways": 5}, "must be 2 in the paper's protocol, but got 5"),
        ({"shots": 11}, "at most the 20 drawings of a class, but got 11"),
        ({"shots": 0}, "`shots` must be an integer of at least 1"),
        ({"rotations": "some"}, "`rotations` must be one of"),
        ({"protocol": "lake"}, "`protocol` must be one of"),
    ],
)
def test_impossible_tasks_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Omniglot(folder=FOLDER, **settings)


def test_an_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="`split` must be one of"):
        Omniglot(folder=FOLDER).draw(np.random.default_rng(0), 1, "exam")


@pytest.mark.parametrize(
    ("rotations", "n_images", "n_classes"),
    [("classes", 8000, 400), ("augmentation", 8000, 100), ("none", 2000, 100)],
)
def test_labelled_images_are_all_of_a_split(rotations: str, n_images: int, n_classes: int) -> None:
    tasks = Omniglot(rotations=rotations, folder=FOLDER)
    images, labels = tasks.labelled("validation")
    assert images.shape == (n_images, 28, 28)
    assert np.bincount(labels).tolist() == [n_images // n_classes] * n_classes
    first = np.asarray(tasks.images).reshape(-1, 20, 28, 28)[tasks.characters("validation")[0]]
    np.testing.assert_array_equal(images[:20], first)
    if rotations != "none":
        np.testing.assert_array_equal(images[20:40], np.rot90(first, axes=(1, 2)))
        assert (labels[20] == 0) == (rotations == "augmentation")
