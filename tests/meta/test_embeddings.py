import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binned_statistic

from pinfactory.meta.experts import Histogram, Pooled, SetEncoder
from pinfactory.meta.tasks import Samples


def samples(n, seed=0, labels=False):
    random = np.random.default_rng(seed)
    x = random.uniform(-5, 5, (n, 1)).astype(np.float32)
    y = np.arange(n) % 2 if labels else random.normal(size=(n, 1)).astype(np.float32)
    return Samples(jnp.asarray(x), jnp.asarray(y))


def double(x, *, key=None):
    return jnp.concatenate([x, 2 * x, jnp.sin(x)])


LOW, HIGH, KEY = jnp.asarray(-5.0), jnp.asarray(5.0), jax.random.key(0)
EMBEDDINGS = {
    "both classes": (Pooled(double, 3, "max", (1, 0), True, True), True),
    "histogram": (Histogram(LOW, HIGH), False),
    "max": (Pooled(double, 3, "max"), False),
    "mean": (Pooled(double, 3, "mean"), False),
    "min of one class": (Pooled(double, 3, "min", labels=(1,)), True),
    "set": (SetEncoder.start(1, 1, key=KEY, width=8), False),
    "set with labels": (SetEncoder.start(1, 2, key=KEY, width=8, classes=True), True),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
class TestEveryEmbedding:
    def test_does_not_depend_on_the_order_of_the_samples(self, name):
        embedding, labels = EMBEDDINGS[name]
        support = samples(9, labels=labels)
        order = np.random.default_rng(1).permutation(9)
        shuffled = jax.tree.map(lambda leaf: leaf[order], support)
        np.testing.assert_allclose(embedding(support), embedding(shuffled), atol=1e-6)

    def test_has_one_size_for_any_number_of_samples(self, name):
        embedding, labels = EMBEDDINGS[name]
        sizes = {embedding(samples(n, labels=labels)).shape for n in (2, 5, 30)}
        assert sizes == {(embedding.size,)}

    def test_is_the_same_when_every_sample_comes_twice(self, name):
        embedding, labels = EMBEDDINGS[name]
        support = samples(6, labels=labels)
        twice = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf]), support)
        np.testing.assert_allclose(embedding(support), embedding(twice), atol=1e-6)

    def test_tells_different_sets_apart(self, name):
        embedding, labels = EMBEDDINGS[name]
        one, other = (embedding(samples(6, seed, labels)) for seed in (0, 1))
        assert not np.allclose(one, other)


class TestHistogram:
    def test_holds_the_mean_target_in_every_bin_and_which_bins_are_occupied(self):
        support = samples(20)
        x, y = np.asarray(support.x)[:, 0], np.asarray(support.y)[:, 0]
        expected = binned_statistic(x, y, "mean", bins=16, range=(-5, 5)).statistic
        vector = Histogram(LOW, HIGH)(support)
        np.testing.assert_allclose(vector[:16], np.nan_to_num(expected), atol=1e-6)
        np.testing.assert_array_equal(vector[16:], ~np.isnan(expected))

    def test_counts_inputs_outside_of_the_range_to_the_outer_bins(self):
        support = Samples(jnp.asarray([[-9.0], [9.0]]), jnp.asarray([[1.0], [2.0]]))
        vector = Histogram(LOW, HIGH, bins=4)(support)
        np.testing.assert_array_equal(vector, [1, 0, 0, 2, 1, 0, 0, 1])

    def test_is_refused_for_inputs_of_several_dimensions(self):
        with pytest.raises(ValueError, match="one dimension"):
            Histogram(LOW, HIGH)(Samples(jnp.zeros((3, 2)), jnp.zeros((3, 1))))


class TestPooled:
    @pytest.mark.parametrize("pool", ["max", "mean", "min"])
    def test_takes_only_the_samples_of_its_class(self, pool):
        support = samples(8, labels=True)
        x = np.asarray(support.x)[1::2]
        features = np.concatenate([x, 2 * x, np.sin(x)], axis=1)
        expected = getattr(np, pool)(features, axis=0)
        np.testing.assert_allclose(
            Pooled(double, 3, pool, labels=(1,))(support), expected, atol=1e-6
        )

    def test_its_encoder_is_not_trained(self):
        embedding = Pooled(eqx.nn.Linear(1, 3, key=KEY), 3)
        gradient = eqx.filter_grad(lambda e: e(samples(4)).sum())(embedding)
        assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient))

    def test_some_classes_are_pooled_one_after_the_other(self):
        support = samples(8, labels=True)
        both = Pooled(double, 3, "mean", labels=(1, 0))
        parts = [Pooled(double, 3, "mean", labels=(label,))(support) for label in (1, 0)]
        np.testing.assert_allclose(both(support), np.concatenate(parts), atol=1e-6)
        assert both.size == 6

    def test_a_normalised_vector_has_a_mean_square_of_one(self):
        code = Pooled(double, 3, normalised=True)(samples(4))
        assert np.mean(np.asarray(code) ** 2) == pytest.approx(1.0, rel=1e-4)

    def test_an_encoder_may_learn_with_the_selector(self):
        embedding = Pooled(eqx.nn.Linear(1, 3, key=KEY), 3, trained=True)
        gradient = eqx.filter_grad(lambda e: e(samples(4)).sum())(embedding)
        assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
