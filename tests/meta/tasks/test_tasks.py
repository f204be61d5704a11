import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.meta import MetaSpecialistClassifier, MetaSpecialistRegressor
from pinfactory.meta.source import TaskBatches, TaskSource
from pinfactory.meta.tasks import (
    ArrayTasks,
    Episode,
    GroupedTasks,
    Samples,
    Sinusoids,
    Tasks,
    as_episode,
    draw_recipes,
)


def built(tasks, n_tasks, split="train", seed=0):
    recipes = tasks.draw(np.random.default_rng(seed), n_tasks, split)
    return jax.tree.map(np.asarray, TaskSource(tasks).batch(jax.device_put(recipes)))


@pytest.fixture(scope="module")
def classes():
    """Samples whose first number is the number of their class; 6 classes of 12."""
    y = np.repeat(np.arange(6), 12)
    return np.stack([y, np.arange(len(y))], axis=1).astype(float), y


class TestSinusoids:
    def test_samples_lie_on_a_sine_of_the_drawn_amplitude_and_phase(self):
        tasks = Sinusoids(shots=7, queries=3)
        recipes = tasks.draw(np.random.default_rng(0), 50)
        episode = jax.vmap(tasks.build)(recipes)
        for part, n in ((episode.support, 7), (episode.query, 3)):
            assert part.x.shape == part.y.shape == (50, n, 1)
            curve = recipes.amplitude[:, None] * np.sin(part.x[..., 0] + recipes.phase[:, None])
            np.testing.assert_allclose(part.y[..., 0], curve, atol=1e-5)

    def test_draws_fill_the_ranges_asked_for(self):
        recipes = Sinusoids(phase=(0.0, np.pi)).draw(np.random.default_rng(0), 5000)
        for values, low, high in (
            (recipes.amplitude, 0.1, 5.0),
            (recipes.phase, 0.0, np.pi),
            (recipes.support, -5.0, 5.0),
        ):
            assert values.min() >= low
            assert values.max() <= high + 1e-6
            assert np.mean(values) == pytest.approx((low + high) / 2, rel=0.05, abs=0.1)

    def test_wrong_settings_are_refused(self):
        with pytest.raises(ValueError, match="`shots` must be an integer of at least 1, but got 0"):
            Sinusoids(shots=0)
        for phase in ((1.0, 0.0), (0.0, np.nan), (-np.inf, 0.0)):
            with pytest.raises(ValueError, match="`phase` must be"):
                Sinusoids(phase=phase)


class TestArrayTasks:
    def test_a_task_shows_shots_samples_of_each_of_its_classes(self, classes):
        tasks = ArrayTasks(*classes, ways=3, shots=4, queries=5)
        assert isinstance(tasks, Tasks)
        episode = built(tasks, 40)
        assert episode.support.x.shape == (40, 12, 2)
        assert episode.query.x.shape == (40, 15, 2)
        for x, y in zip(episode.support.x, episode.support.y, strict=True):
            for label in range(3):
                assert len(set(x[y == label, 0])) == 1
            assert len(set(x[:, 0])) == 3

    def test_query_samples_are_new_samples_of_the_same_classes(self, classes):
        episode = built(ArrayTasks(*classes, ways=2, shots=5, queries=7), 40)
        for task in range(40):
            support, query = episode.support.x[task, :, 1], episode.query.x[task, :, 1]
            assert not set(support) & set(query)
            assert len(set(support)) == 10
            for label in range(2):
                (name,) = set(episode.support.x[task, episode.support.y[task] == label, 0])
                assert set(episode.query.x[task, episode.query.y[task] == label, 0]) == {name}

    def test_test_tasks_are_about_classes_never_seen_in_training(self, classes):
        tasks = ArrayTasks(*classes, ways=2, shots=2, test=0.34)
        seen = set(built(tasks, 200).support.x[..., 0].ravel())
        new = set(built(tasks, 200, "test").support.x[..., 0].ravel())
        assert len(seen) == 4
        assert len(new) == 2
        assert not seen & new
        assert set(tasks.classes("test")) == new

    def test_labels_may_be_words_and_splits_may_be_named(self, classes):
        X, y = classes
        names = np.array(["ant", "bee", "cat", "dog", "elk", "fox"])[y]
        splits = {"train": ["ant", "bee"], "test": ["fox", "dog"]}
        tasks = ArrayTasks(X, names, ways=2, shots=2, splits=splits)
        assert set(built(tasks, 50, "test").support.x[..., 0].ravel()) == {3.0, 5.0}

    def test_a_class_that_never_occurs_is_named(self, classes):
        with pytest.raises(ValueError, match=r"\[9\] never do"):
            ArrayTasks(*classes, ways=2, shots=2, splits={"train": [0, 1, 9]})

    def test_a_class_with_too_few_samples_is_named(self, classes):
        X, y = classes
        with pytest.raises(ValueError, match=r"= 12 samples, but class .*0.* has 11"):
            ArrayTasks(X[1:], y[1:], ways=2, shots=2, test=0.0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"ways": 4}, "must leave at least 4 of 6 for training"),
            ({"splits": {"train": [1]}}, "`ways` must be at most the 1 classes for train"),
            ({"ways": 1}, "`ways` must be an integer of at least 2"),
            ({"shots": 0}, "`shots` must be an integer of at least 1"),
            ({"splits": {"training": [1, 2]}}, "must have the keys"),
            ({"test": 0.9}, "must leave at least 2 of 6"),
        ],
    )
    def test_settings_that_make_no_tasks_are_refused(self, classes, change, message):
        with pytest.raises(ValueError, match=message):
            ArrayTasks(*classes, **{"ways": 2, "shots": 2} | change)

    def test_an_empty_split_cannot_be_drawn_from(self, classes):
        tasks = ArrayTasks(*classes, ways=2, shots=2)
        with pytest.raises(ValueError, match="'validation', which is empty"):
            tasks.draw(np.random.default_rng(0), 3, "validation")

    def test_labels_must_match_the_samples(self, classes):
        X, y = classes
        with pytest.raises(ValueError, match="one label for each of 72 samples"):
            ArrayTasks(X, y[:-1], ways=2, shots=2)


class TestGroupedTasks:
    def test_a_task_is_one_group(self, classes):
        X, group = classes
        tasks = GroupedTasks(X, X[:, 1], group, shots=4, queries=5, test=0.34)
        episode = built(tasks, 60)
        assert episode.support.y.shape == (60, 4, 1)
        np.testing.assert_array_equal(episode.query.y[..., 0], episode.query.x[..., 1])
        for task in range(60):
            both = np.concatenate([episode.support.x[task], episode.query.x[task]])
            assert len(set(both[:, 0])) == 1
            assert len(set(both[:, 1])) == 9
        assert set(episode.support.x[..., 0].ravel()) == set(tasks.groups("train"))

    def test_a_group_with_too_few_samples_is_named(self, classes):
        X, group = classes
        with pytest.raises(ValueError, match="= 13 samples, but group"):
            GroupedTasks(X, X[:, 1], group, shots=3)

    def test_lengths_must_match(self, classes):
        X, group = classes
        with pytest.raises(ValueError, match="must have the same length"):
            GroupedTasks(X, X[:-1, 1], group, shots=2)


class TestTaskBatches:
    def test_neither_chunks_nor_resumes_change_them(self):
        recipes, seeds = TaskBatches(Sinusoids(shots=2), 4), [[0, 1], [0, 2]]
        whole = recipes(seeds, 0, 150)
        parts = [recipes(seeds, start, 50) for start in (0, 50, 100)]
        for name in whole._fields:
            joined = np.concatenate([getattr(part, name) for part in parts], axis=1)
            np.testing.assert_array_equal(getattr(whole, name), joined)
        assert whole.support.shape == (2, 150, 4, 2)

    def test_seeds_and_steps_see_different_tasks(self):
        drawn = TaskBatches(Sinusoids(shots=2), 4)([[0, 1], [0, 2]], 0, 100)
        assert len(np.unique(drawn.amplitude)) == drawn.amplitude.size


class Lines:
    """Tasks as the guide describes them: no module, no default, pairs, and one number a target."""

    def draw(self, random, n_tasks, split):
        return random.normal(size=(n_tasks, 2)).astype(np.float32)

    def build(self, recipe):
        x = jnp.linspace(-1.0, 1.0, 6)[:, None]
        y = recipe[0] + recipe[1] * x[:, 0]
        return (x[::2], y[::2]), (x[1::2], y[1::2])


class TestOwnTasks:
    def test_two_methods_are_enough_to_learn_from(self):
        learner = MetaSpecialistRegressor(2, max_iter=60, batch_size=8, random_state=0)
        found = learner.fit(Lines()).evaluate(Lines(), 50)
        # A constant answer has the mean square of the targets, 1 + 1/3 and a little.
        assert found.mean < 0.5

    def test_numbers_become_vectors_and_classes_stay_numbers(self):
        x, y, label = np.zeros((4, 3), np.float32), np.arange(4.0), np.arange(4)
        assert as_episode(((x, y), (x, y))).query.y.shape == (4, 1)
        assert as_episode(((x, label), (x, label))).support.y.shape == (4,)
        episode = Episode(Samples(x, y[:, None]), Samples(x, y[:, None]))
        np.testing.assert_array_equal(as_episode(episode).support.y, y[:, None])

    @pytest.mark.parametrize(
        ("built", "found"),
        [
            (None, "NoneType with no arrays"),
            ((np.zeros((4, 1)), np.zeros(4)), r"tuple with float32\[4, 1\], float32\[4\]"),
            (((np.zeros(4), np.zeros(4)),) * 2, r"float32\[4\], float32\[4\]"),
            (((np.zeros((4, 1)), np.zeros(3)),) * 2, r"float32\[4, 1\], float32\[3\]"),
            (((np.zeros((4, 1)), np.zeros((4, 1), int)),) * 2, r"int32\[4, 1\]"),
            (((np.zeros((4, 1), int), np.zeros(4)),) * 2, r"int32\[4, 1\]"),
            (((np.zeros((4, 1)), np.zeros(())),) * 2, r"float32\[\]"),
            (((object(), 1), (2, 3)), "tuple with no arrays"),
            (((np.zeros((4, 1)), np.zeros(4)), (np.zeros((4, 2)), np.zeros(4))), r"\[4, 2\]"),
            (((np.zeros((4, 1)), np.zeros(4)), (np.zeros((4, 1)), np.zeros((4, 2)))), r"\[4, 2\]"),
            (
                ((np.zeros((4, 1)), np.zeros(4)), (np.zeros((4, 1)), np.zeros(4, int))),
                r"int32\[4\]",
            ),
            (((np.zeros((0, 1)), np.zeros(0)), (np.zeros((4, 1)), np.zeros(4))), r"32\[0, 1\]"),
            (((np.zeros((4, 1)), np.zeros(4)), (np.zeros((0, 1)), np.zeros(0))), r"32\[0, 1\]"),
        ],
    )
    def test_a_bad_task_is_refused_with_the_shapes_wanted(self, built, found):
        with pytest.raises(ValueError, match=r"x of shape \(samples, features\).*" + found):
            as_episode(built)

    def test_a_task_that_numpy_builds_is_refused_with_what_to_use(self):
        class Bad(Lines):
            def build(self, recipe):
                return super().build(np.asarray(recipe))

        with pytest.raises(TypeError, match=r"jax\.numpy in place of numpy"):
            MetaSpecialistRegressor(2, max_iter=1).fit(Bad())

    def test_labels_below_zero_are_refused(self):
        class Negative(Lines):
            def build(self, recipe):
                x, label = jnp.ones((4, 1)), jnp.array([0, 1, -1, 1])
                return (x, label), (x, label)

        with pytest.raises(ValueError, match="whole numbers from 0 on, but got -1"):
            MetaSpecialistClassifier(2, max_iter=1).fit(Negative())

    @pytest.mark.parametrize(
        "recipes",
        [np.zeros(3), {}, {"a": np.zeros((5, 1)), "b": 1.0}, np.array(["a"] * 5), np.full(5, None)],
    )
    def test_bad_recipes_are_refused_with_the_axis_wanted(self, recipes):
        class Bad(Lines):
            def draw(self, random, n_tasks, split):
                return recipes

        with pytest.raises(ValueError, match="leading axis of 5 tasks"):
            draw_recipes(Bad(), np.random.default_rng(0), 5)
