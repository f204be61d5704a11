import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from pinfactory import networks
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, assemble, stack
from pinfactory.core.priors import Prior, Priors
from pinfactory.core.resources import Budget, Fixed
from pinfactory.core.training import Run, train
from pinfactory.core.utilities import log_likelihood
from pinfactory.meta.adaptation import GradientSteps, Unchanged
from pinfactory.meta.embeddings import SetEncoder
from pinfactory.meta.experts import HeadedNetwork, MetaExpert, Question, TaskSelector, per_sample
from pinfactory.meta.learner import MetaLearner
from pinfactory.meta.source import Recipes, TaskSource
from pinfactory.meta.tasks import ArrayTasks

M = 3


def identity(x, *, key=None):
    return x


@pytest.fixture(scope="module")
def tasks():
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(8), 10)
    return ArrayTasks(random.normal(size=(80, 2)) + 2.0 * random.normal(size=(8, 2))[y], y,
                      ways=2, shots=3, queries=4)  # fmt: skip


@pytest.fixture(scope="module")
def hierarchy():
    def selector(key):
        embedding = SetEncoder.start(2, 2, key=key, width=4, classes=True)
        return TaskSelector(embedding, networks.linear(4, M, key=key))

    def expert(key):
        network = HeadedNetwork(identity, networks.linear(2, 2, key=key))
        knowledge = FamilyExpert(network, Categorical.from_logits)
        rule = GradientSteps.start(knowledge, log_likelihood, rate=0.1, learned=True)
        return MetaExpert(knowledge, rule)

    return assemble(jax.random.key(0), selector, expert, M)


@pytest.fixture(scope="module")
def batch(tasks):
    recipes = tasks.draw(np.random.default_rng(1), 5)
    return TaskSource(tasks).batch(jax.device_put(recipes))


def started(learner, hierarchy, *, betas=(4.0, 3.0), priors=None, **settings):
    resources = tuple(Fixed(jnp.asarray(beta)) for beta in betas)
    return learner.init(hierarchy, priors or fixed_priors(), resources, **settings)


def fixed_priors():
    selection = Categorical.from_probs(jnp.asarray([0.5, 0.3, 0.2]))
    answers = Categorical.from_probs(jnp.asarray([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]]))
    return Priors((Prior.fixed(selection), Prior.fixed(answers)))


def test_the_objective_is_that_of_the_query_samples_after_adaptation(hierarchy, batch):
    learner = MetaLearner(log_likelihood)
    _, info = eqx.filter_jit(learner.step)(jax.random.key(0), started(learner, hierarchy), batch)

    @eqx.filter_jit
    def adapted(m, support):
        return hierarchy.expert(m).adapt(support).network.head

    # The same again with NumPy, one sample after the other.
    p_m, p_y = np.array([0.5, 0.3, 0.2]), np.array([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]])
    rows, weights, utilities, costs = [], [], [], []
    for task in range(5):
        question = jax.tree.map(
            lambda leaf, t=task: leaf[t], Question(batch.support, batch.query.x)
        )
        selection = softmax(np.asarray(hierarchy.selector(question), float))
        for x, y in zip(batch.query.x[task], batch.query.y[task], strict=True):
            for m in range(M):
                head = adapted(jnp.asarray(m), question.support)
                answer = softmax(np.asarray(x, float) @ np.asarray(head.weight).T + head.bias)
                utilities.append(np.log(answer[int(y)]))
                costs.append(np.sum(answer * np.log(answer / p_y[m])))
                weights.append(selection[m] / 40)
            rows.append(np.sum(selection * np.log(selection / p_m)))
    weights, utilities = np.array(weights), np.array(utilities)
    mean = weights @ utilities
    deviation = np.sqrt(weights @ (utilities - mean) ** 2)
    expected = mean / deviation - np.mean(rows) / 4.0 - weights @ np.array(costs) / 3.0
    assert info.objective == pytest.approx(expected, rel=1e-4)
    assert info.utility == pytest.approx(mean, rel=1e-4)
    assert info.information[0] == pytest.approx(np.mean(rows) / np.log(2), rel=1e-4)


def test_sampled_experts_learn_the_same_on_average(hierarchy, batch):
    def experts_after(learner, key):
        # The first step of Adam hides the size of a gradient; its first moment does not.
        state, _ = learner.step(key, started(learner, hierarchy), batch)
        return jax.tree.leaves(eqx.filter(state.optimiser.mu, eqx.is_array))

    keys = jax.random.split(jax.random.key(3), 4000)
    exact = experts_after(MetaLearner(log_likelihood), keys[0])
    several = eqx.filter_jit(
        jax.vmap(lambda key: experts_after(MetaLearner(log_likelihood, True), key))
    )
    for one, many in zip(exact, several(keys), strict=True):
        error = 5.0 * np.std(many, axis=0) / np.sqrt(len(keys)) + 1e-6
        assert np.all(np.abs(one - np.mean(many, axis=0)) < error)


def test_only_the_chosen_expert_learns_when_one_is_sampled(hierarchy, batch):
    # A selector that is sure of expert 1.
    sure = eqx.tree_at(
        lambda h: (h.selector.network.weight, h.selector.network.bias),
        hierarchy,
        (jnp.zeros((M, 4)), jnp.asarray([0.0, 60.0, 0.0])),
    )
    learner = MetaLearner(log_likelihood, sampled=True)
    state, _ = learner.step(jax.random.key(0), started(learner, sure), batch)
    before = sure.experts.knowledge.network.head.weight
    changed = np.any(
        np.asarray(state.hierarchy.experts.knowledge.network.head.weight != before), axis=(1, 2)
    )
    np.testing.assert_array_equal(changed, [False, True, False])


def test_every_query_sample_is_an_input_of_its_own(hierarchy, batch):
    decision = jax.vmap(hierarchy)(Question(batch.support, batch.query.x))
    samples = per_sample(decision)
    assert samples.answers.log_probs.shape == (5 * 8, M, 2)
    np.testing.assert_array_equal(
        samples.answers.log_probs.reshape(5, 8, M, 2)[2, 7, 1],
        decision.answers.log_probs[2, 1, 7],
    )
    np.testing.assert_array_equal(
        samples.selections[0].log_probs.reshape(5, 8, M)[:, 3], decision.selections[0].log_probs
    )


def test_the_learning_rate_falls_to_nothing(hierarchy, batch):
    learner = MetaLearner(log_likelihood)
    state = started(learner, hierarchy, decay_steps=2.0)
    step = eqx.filter_jit(learner.step)
    sizes = []
    for _ in range(3):
        new, _ = step(jax.random.key(0), state, batch)
        sizes.append(
            np.abs(
                new.hierarchy.selector.network.weight - state.hierarchy.selector.network.weight
            ).max()
        )
        state = new
    assert sizes[0] == pytest.approx(1e-3, rel=1e-2)
    assert 0.0 < sizes[1] < 0.9e-3
    assert sizes[2] == 0.0


def test_what_is_observed_stays_in_the_hierarchy(hierarchy, batch):
    def observe(hierarchy, batch, selection):
        assert selection.log_probs.shape == (5, M)
        return eqx.tree_at(
            lambda h: h.experts.knowledge.network.head.bias, hierarchy, jnp.full((M, 2), 7.0)
        )

    learner = MetaLearner(log_likelihood, observe=observe)
    state, _ = learner.step(jax.random.key(0), started(learner, hierarchy), batch)
    assert np.all(state.hierarchy.experts.knowledge.network.head.bias == 7.0)


def test_a_budget_in_bits_is_kept(hierarchy, tasks):
    unadapted = eqx.tree_at(lambda h: h.experts.adaptation, hierarchy, Unchanged())
    learner = MetaLearner(log_likelihood)
    resources = (Budget(jnp.asarray(0.5)), Fixed(jnp.asarray(100.0)))
    example = tasks.draw(np.random.default_rng(1), 1)
    episode = TaskSource(tasks).batch(jax.device_put(example))
    decision = per_sample(jax.vmap(unadapted)(Question(episode.support, episode.query.x)))
    priors = Priors.running(jax.tree.map(lambda leaf: leaf[0], decision), 0.99, 0.99)
    state = learner.init(unadapted, priors, resources, learning_rate=3e-3, balance=0.1)
    run = Run.start(jax.random.split(jax.random.key(0), 1), stack([state]))
    trained = train(
        learner, run, TaskSource(tasks), steps=6000, batches=Recipes(tasks, 16), chunk=500
    )
    bits = [float(progress.info.information[0][0]) for progress in trained.history]
    assert np.mean(bits[-3:]) == pytest.approx(0.5, abs=0.1)
