import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from pinfactory.core.families import Categorical
from pinfactory.core.gaussian_experts import ConstantNoiseExpert
from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.core.utilities import log_likelihood, squared_error
from pinfactory.meta.adaptation import GradientSteps, LastLayer, Unchanged
from pinfactory.meta.experts import HeadedNetwork, MetaExpert, TaskInput
from pinfactory.meta.tasks import Samples


def identity(x, *, key=None):
    return x


def line(weight, bias):
    """An expert that predicts weight · x + bias."""
    head = eqx.nn.Linear(len(weight), 1, key=jax.random.key(0))
    head = eqx.tree_at(
        lambda h: (h.weight, h.bias), head, (jnp.asarray([weight]), jnp.asarray([bias]))
    )
    return ConstantNoiseExpert(HeadedNetwork(identity, head), jnp.zeros(1))


def net(key, outputs=1):
    features = eqx.nn.Linear(2, 5, key=key)
    body = eqx.nn.Sequential([features, eqx.nn.Lambda(jnp.tanh)])
    return HeadedNetwork(body, eqx.nn.Linear(5, outputs, key=jax.random.fold_in(key, 1)))


@pytest.fixture
def support(rng):
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(6, 1))
    return Samples(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))


def weights(expert):
    head = expert.network.head
    return np.append(np.asarray(head.weight)[0], head.bias)


class TestGradientSteps:
    @pytest.mark.parametrize("steps", [0, 1, 3])
    def test_are_gradient_descent_on_the_mean_squared_error(self, support, steps):
        expert = line([0.5, -0.3], 0.1)
        rule = GradientSteps.start(expert, squared_error, rate=0.05, steps=steps)
        x = np.column_stack([support.x, np.ones(6)]).astype(float)
        w = np.array([0.5, -0.3, 0.1])
        for _ in range(steps):
            w = w - 0.05 * 2 / 6 * x.T @ (x @ w - np.asarray(support.y)[:, 0])
        np.testing.assert_allclose(weights(rule(expert, support)), w, atol=1e-6)

    def test_of_the_head_leave_the_features_as_they_were(self, support):
        expert = ConstantNoiseExpert(net(jax.random.key(1)), jnp.zeros(1))
        rule = GradientSteps.start(expert, squared_error, rate=0.1, steps=2, part="head")
        adapted = rule(expert, support)
        before, after = (e.network.features[0].weight for e in (expert, adapted))
        np.testing.assert_array_equal(before, after)
        assert not np.allclose(weights(expert), weights(adapted))

    def query_loss(self, support, **settings):
        """Return the loss after adaptation as a function of one weight, and its derivative."""
        start = line([0.5, -0.3], 0.1)
        rule = GradientSteps.start(start, squared_error, rate=0.05, steps=2, **settings)

        def loss(w):
            expert = eqx.tree_at(lambda e: e.network.head.weight, start, w[None])
            adapted = MetaExpert(expert, rule)
            answer = adapted(TaskInput(support, support.x))
            return jnp.mean((answer.mean - 2.0 * support.y) ** 2)

        return loss, jax.grad(loss)

    def test_second_order_meta_gradients_are_exact(self, support):
        loss, gradient = self.query_loss(support)
        w, step = np.array([0.5, -0.3]), np.array([1e-2, 0.0])
        numerical = (loss(jnp.asarray(w + step)) - loss(jnp.asarray(w - step))) / 2e-2
        assert gradient(jnp.asarray(w))[0] == pytest.approx(float(numerical), rel=1e-3)

    def test_first_order_meta_gradients_are_those_at_the_adapted_weights(self, support):
        _, gradient = self.query_loss(support, first_order=True)
        rule = GradientSteps.start(line([0.5, -0.3], 0.1), squared_error, rate=0.05, steps=2)
        w = weights(rule(line([0.5, -0.3], 0.1), support))
        x = np.column_stack([support.x, np.ones(6)]).astype(float)
        expected = 2 / 6 * x.T @ (x @ w - 2.0 * np.asarray(support.y)[:, 0])
        np.testing.assert_allclose(gradient(jnp.asarray([0.5, -0.3])), expected[:2], rtol=1e-4)

    @pytest.mark.parametrize("learned", [True, False])
    def test_step_sizes_are_trained_only_if_they_are_to_be_learned(self, support, learned):
        expert = line([0.5, -0.3], 0.1)
        rule = GradientSteps.start(expert, squared_error, learned=learned)
        gradient = eqx.filter_grad(lambda r: jnp.sum(weights_of(r(expert, support)) ** 2))(rule)
        changes = [bool(np.any(leaf)) for leaf in jax.tree.leaves(gradient)]
        assert any(changes) == learned

    def test_the_number_of_steps_can_be_changed_after_training(self, support):
        expert = line([0.5, -0.3], 0.1)
        rule = GradientSteps.start(expert, squared_error, steps=1)
        twice = rule(rule(expert, support), support)
        np.testing.assert_allclose(
            weights(rule.with_steps(2)(expert, support)), weights(twice), rtol=1e-6
        )

    def test_raise_the_likelihood_of_class_labels(self, support):
        expert = FamilyExpert(net(jax.random.key(1), 3), Categorical.from_logits)
        labels = Samples(support.x, jnp.asarray([0, 1, 2, 0, 1, 2]))
        rule = GradientSteps.start(expert, log_likelihood, rate=0.5, steps=10)

        def fit(e):
            return float(jnp.mean(jax.vmap(e)(labels.x).log_prob(labels.y)))

        assert fit(rule(expert, labels)) > fit(expert) + 0.1


def weights_of(expert):
    return expert.network.head.weight


class TestLastLayer:
    def rule(self, expert, spread=0.7, noise=0.4):
        n_rows = expert.network.head.in_features + 1
        start = LastLayer.start(expert, key=jax.random.key(0), rank=n_rows, noise=noise)
        return eqx.tree_at(lambda r: r.factor, start, spread * jnp.eye(n_rows))

    @pytest.mark.parametrize("n_samples", [2, 6])
    def test_is_ridge_regression_towards_the_experts_own_head(self, support, n_samples):
        some = jax.tree.map(lambda leaf: leaf[:n_samples], support)
        expert = line([0.5, -0.3], 0.1)
        adapted = self.rule(expert)(expert, some)
        x = np.column_stack([some.x, np.ones(n_samples)]).astype(float)
        known = np.array([0.5, -0.3, 0.1])
        ridge = Ridge(alpha=(0.4 / 0.7) ** 2, fit_intercept=False)
        ridge.fit(x, np.asarray(some.y)[:, 0] - x @ known)
        np.testing.assert_allclose(weights(adapted), known + ridge.coef_, atol=1e-5)

    def test_maximises_the_free_energy_against_the_experts_prior(self, support):
        expert = line([0.5, -0.3], 0.1)
        adapted = weights(self.rule(expert)(expert, support))
        x = np.column_stack([support.x, np.ones(6)]).astype(float)
        known = np.array([0.5, -0.3, 0.1])

        def free_energy(mean):
            # Expected log-likelihood and KL as far as they depend on the posterior mean.
            error = x @ mean - np.asarray(support.y)[:, 0]
            return -0.5 * error @ error / 0.4**2 - 0.5 * np.sum((mean - known) ** 2) / 0.7**2

        best = free_energy(adapted)
        for change in 0.01 * np.random.default_rng(0).normal(size=(20, 3)):
            assert free_energy(adapted + change) < best

    def test_its_gradient_is_exact(self, support):
        expert = line([0.5, -0.3], 0.1)
        rule = self.rule(expert)

        def total(log_noise):
            changed = eqx.tree_at(lambda r: r.log_noise, rule, log_noise)
            return jnp.sum(weights_of(changed(expert, support)) ** 2)

        at, step = float(rule.log_noise), 1e-2
        numerical = (total(jnp.asarray(at + step)) - total(jnp.asarray(at - step))) / (2 * step)
        assert jax.grad(total)(jnp.asarray(at)) == pytest.approx(float(numerical), rel=1e-2)

    def test_learns_class_labels(self, support):
        expert = FamilyExpert(net(jax.random.key(1), 2), Categorical.from_logits)
        labels = Samples(support.x[:4], jnp.asarray([0, 1, 0, 1]))
        rule = LastLayer.start(expert, key=jax.random.key(2), noise=1e-3)
        answers = jax.vmap(rule(expert, labels))(labels.x)
        np.testing.assert_array_equal(answers.log_probs.argmax(axis=1), labels.y)


def test_unchanged_experts_answer_as_before(support):
    expert = line([0.5, -0.3], 0.1)
    assert Unchanged()(expert, support) is expert
