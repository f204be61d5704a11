import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

from pinfactory import networks
from pinfactory.core.constraints import (
    Budget,
    Constraints,
    Fixed,
    Prior,
    Priors,
    UtilityScale,
)
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, assemble, stack
from pinfactory.core.learning import Learner
from pinfactory.core.training import Run, train
from pinfactory.core.utilities import log_likelihood
from pinfactory.meta.adaptation import GradientSteps, Unchanged
from pinfactory.meta.experts import (
    HeadedNetwork,
    MetaExpert,
    SetEncoder,
    TaskInput,
    TaskSelector,
    per_query,
)
from pinfactory.meta.loss import TaskLoss, sharpen
from pinfactory.meta.source import TaskBatches, TaskSource
from pinfactory.meta.tasks import ArrayTasks

M = 3


@eqx.filter_jit
def take_step(learner, state, batch, key=None):
    return learner.step(jax.random.key(0) if key is None else key, state, batch)


@eqx.filter_jit
def decide(hierarchy, inputs):
    return jax.vmap(hierarchy)(inputs)


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
        initial = FamilyExpert(network, Categorical.from_logits)
        rule = GradientSteps.start(initial, log_likelihood, rate=0.1, learned=True)
        return MetaExpert(initial, rule)

    return assemble(jax.random.key(0), selector, expert, M)


@pytest.fixture(scope="module")
def batch(tasks):
    recipes = tasks.draw(np.random.default_rng(1), 5)
    return TaskSource(tasks).batch(jax.device_put(recipes))


def started(learner, hierarchy, *, betas=(4.0, 3.0), scale=True, **settings):
    resources = tuple(Fixed(jnp.asarray(beta)) for beta in betas)
    constraints = Constraints(fixed_priors(), resources, UtilityScale() if scale else None)
    return learner.init(hierarchy, constraints, **settings)


def fixed_priors():
    selection = Categorical.from_probs(jnp.asarray([0.5, 0.3, 0.2]))
    answers = Categorical.from_probs(jnp.asarray([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]]))
    return Priors((Prior.fixed(selection), Prior.fixed(answers)))


def test_the_objective_is_that_of_the_query_samples_after_adaptation(hierarchy, batch):
    learner = Learner(TaskLoss(log_likelihood))
    _, info = take_step(learner, started(learner, hierarchy), batch)

    @eqx.filter_jit
    def adapted(m, support):
        return hierarchy.expert(m).adapt(support).network.head

    selections = decide(hierarchy, TaskInput(batch.support, batch.query.x)).responsibilities
    # The same again with NumPy, one sample after the other.
    p_m, p_y = np.array([0.5, 0.3, 0.2]), np.array([[0.5, 0.5], [0.6, 0.4], [0.1, 0.9]])
    rows, weights, utilities, costs = [], [], [], []
    for task in range(5):
        support = jax.tree.map(lambda leaf, t=task: leaf[t], batch.support)
        selection = np.asarray(selections[task], float)
        for x, y in zip(batch.query.x[task], batch.query.y[task], strict=True):
            for m in range(M):
                head = adapted(jnp.asarray(m), support)
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


def first_moment(loss, hierarchy, batch, key, **settings):
    # The first step of Adam hides the size of a gradient; its first moment does not.
    learner = Learner(loss)
    state, _ = take_step(learner, started(learner, hierarchy, **settings), batch, key)
    return state.optimiser.mu


def test_one_sampled_expert_per_task_teaches_the_same_on_average(hierarchy, batch):
    """Selector and experts: the gradient of one sampled expert is unbiased."""
    keys = jax.random.split(jax.random.key(3), 4000)
    exact = first_moment(TaskLoss(log_likelihood), hierarchy, batch, keys[0], scale=False)
    sampled = TaskLoss(log_likelihood, expectation="sampled")
    draw = jax.vmap(lambda key: first_moment(sampled, hierarchy, batch, key, scale=False))
    many = np.asarray(eqx.filter_jit(draw)(keys))
    error = 5.0 * np.std(many, axis=0) / np.sqrt(len(keys)) + 1e-6
    assert np.all(np.abs(exact - np.mean(many, axis=0)) < error)
    assert np.any(np.std(many, axis=0) > 1e-3)


def test_only_the_chosen_expert_learns_when_one_is_sampled(hierarchy, batch):
    # A selector that is sure of expert 1.
    sure = eqx.tree_at(
        lambda h: (h.selector.network.weight, h.selector.network.bias),
        hierarchy,
        (jnp.zeros((M, 4)), jnp.asarray([0.0, 60.0, 0.0])),
    )
    learner = Learner(TaskLoss(log_likelihood, expectation="sampled"))
    state, _ = take_step(learner, started(learner, sure), batch)
    before = sure.experts.initial.network.head.weight
    changed = np.any(
        np.asarray(state.model.experts.initial.network.head.weight != before), axis=(1, 2)
    )
    np.testing.assert_array_equal(changed, [False, True, False])


def test_the_bonus_is_the_entropy_of_the_experts_in_use(hierarchy, batch):
    def objective(balance):
        learner = Learner(TaskLoss(log_likelihood, balance))
        state = started(learner, hierarchy)
        return float(take_step(learner, state, batch)[1].objective)

    inputs = TaskInput(batch.support, batch.query.x)
    share = np.mean(np.asarray(decide(hierarchy, inputs).responsibilities, float), axis=0)
    bonus = 0.7 * -np.sum(share * np.log(share))
    assert objective(0.7) - objective(0.0) == pytest.approx(bonus, abs=1e-5)


def test_the_warm_up_divides_tasks_and_the_selector_imitates_the_division(hierarchy, batch):
    """During the warm-up the selector climbs its cross-entropy with the division alone."""
    inputs = TaskInput(batch.support, batch.query.x)
    (selection,) = decide(hierarchy, inputs).selections
    division = np.asarray(sharpen(selection).probs, float)

    def imitation(selector):
        logits = jax.vmap(selector)(inputs)
        return jnp.mean(jnp.sum(division * jax.nn.log_softmax(logits), axis=1))

    loss = TaskLoss(log_likelihood, 0.0, jnp.asarray(2.0))
    start = started(Learner(loss), hierarchy)
    descend = eqx.filter_jit(eqx.filter_grad(loss, has_aux=True))
    gradient, _ = descend(hierarchy, start, batch, jax.random.key(0))
    for got, wanted in zip(
        jax.tree.leaves(gradient.selector),
        jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(imitation))(hierarchy.selector)),
        strict=True,
    ):
        np.testing.assert_allclose(got, -wanted, rtol=1e-3, atol=1e-5)

    def info(warmup_steps, step):
        learner = Learner(TaskLoss(log_likelihood, 0.0, warmup_steps))
        state = started(learner, hierarchy)
        state = eqx.tree_at(lambda s: s.step, state, jnp.asarray(step))
        return take_step(learner, state, batch)[1]

    warm, over, never = info(jnp.asarray(2.0), 1), info(jnp.asarray(2.0), 2), info(None, 2)
    p_m = np.array([0.5, 0.3, 0.2])
    bits = np.mean(np.sum(division * np.log2(division / p_m), axis=1))
    assert warm.information[0] == pytest.approx(bits, rel=1e-4)
    assert over.objective == pytest.approx(float(never.objective), rel=1e-5)
    assert over.information[0] == pytest.approx(float(never.information[0]), rel=1e-5)


def test_a_weak_selection_becomes_a_clear_and_even_division(rng):
    """An expert that is a little more likely in a task gets it, however likely it is overall."""
    task, overall = rng.normal(size=(2000, 4)), np.asarray([0.0, 3.0, -3.0, 1.0])
    got = sharpen(Categorical.from_logits(jnp.asarray(0.01 * task + overall)))
    assert float(jnp.mean(got.entropy())) < 0.5 * np.log(4)
    np.testing.assert_allclose(jnp.mean(got.probs, axis=0), 0.25, atol=0.02)
    assert np.mean(np.argmax(got.probs, axis=1) == np.argmax(task, axis=1)) > 0.95


def test_one_task_alone_is_divided_evenly():
    got = sharpen(Categorical.from_logits(jnp.asarray([[1.0, -2.0, 0.5]])))
    np.testing.assert_allclose(got.probs, np.full((1, 3), 1 / 3), rtol=1e-4)


def test_every_query_sample_is_an_input_of_its_own(hierarchy, batch):
    decision = decide(hierarchy, TaskInput(batch.support, batch.query.x))
    samples = per_query(decision)
    assert samples.answers.log_probs.shape == (5 * 8, M, 2)
    np.testing.assert_array_equal(
        samples.answers.log_probs.reshape(5, 8, M, 2)[2, 7, 1],
        decision.answers.log_probs[2, 1, 7],
    )
    np.testing.assert_array_equal(
        samples.selections[0].log_probs.reshape(5, 8, M)[:, 3], decision.selections[0].log_probs
    )


def test_a_budget_in_bits_is_kept(hierarchy, tasks):
    unadapted = eqx.tree_at(lambda h: h.experts.adaptation, hierarchy, Unchanged())
    learner = Learner(TaskLoss(log_likelihood, 0.1))
    resources = (Budget(jnp.asarray(0.5)), Fixed(jnp.asarray(100.0)))
    example = tasks.draw(np.random.default_rng(1), 1)
    episode = TaskSource(tasks).batch(jax.device_put(example))
    decision = per_query(decide(unadapted, TaskInput(episode.support, episode.query.x)))
    priors = Priors.running(jax.tree.map(lambda leaf: leaf[0], decision), 0.99, 0.99)
    constraints = Constraints(priors, resources, UtilityScale())
    state = learner.init(unadapted, constraints, learning_rate=3e-3)
    run = Run.start(jax.random.split(jax.random.key(0), 1), stack([state]))
    trained = train(
        learner, run, TaskSource(tasks), steps=6000, batches=TaskBatches(tasks, 16), chunk=500
    )
    bits = [float(progress.info.information[0][0]) for progress in trained.history]
    assert np.mean(bits[-3:]) == pytest.approx(0.5, abs=0.1)
