"""Algorithm 1: who learns from what, checked by hand on tiny tasks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.stats

from pinfactory import load, paper
from pinfactory.core.families import Categorical
from pinfactory.core.utilities import squared_error
from pinfactory.meta.parameters import TaskDescription
from pinfactory.meta.tasks import ArrayTasks, Episode, Samples, Sinusoids
from pinfactory.paper.algorithm_1 import AdamSteps, Dropout
from pinfactory.vision import Reconstruction

BETA_SELECTOR, BETA_EXPERT, N = 4.0, 3.0, 5
RANDOM = np.random.default_rng(0)
gradient = eqx.filter_jit(
    lambda loss, state, batch, key: eqx.filter_grad(loss, has_aux=True)(
        state.model, state, batch, key
    )
)


@pytest.fixture(scope="module", params=["squared_error", "huber"])
def regression(request):
    """Return learner, state and a batch of five tasks with three samples in either part."""
    learner = paper.sinusoids(
        2,
        utility=request.param,
        beta_selector=BETA_SELECTOR,
        beta_expert=BETA_EXPERT,
        selector_hidden=(3,),
        expert_hidden=(4,),
    )
    tasks = TaskDescription((1,), 1, (-2.0, 2.0), learner._utility(), False)
    numbers = RANDOM.normal(size=(4, N, 3, 1)).astype(np.float32)
    x, y, query_x, query_y = map(jnp.asarray, numbers)
    batch = Episode(Samples(x, y), Samples(query_x, query_y))
    return *learner._start(learner._build(tasks, 0), tasks, new=True), batch


@pytest.fixture(scope="module")
def images():
    """Return learner, state and a batch of tasks with two positive and two negative images."""
    learner = paper.few_shot(2, filters=3, dropout=0.0)
    labels = jnp.tile(jnp.asarray([1, 0, 1, 0]), (N, 1))
    numbers = RANDOM.uniform(size=(2, N, 4, 8, 8)).astype(np.float32)
    support, query = (Samples(jnp.asarray(x), labels) for x in numbers)
    tasks = TaskDescription((8, 8), 2, (0.0, 1.0), learner._utility(), True, support)
    return *learner._start(learner._build(tasks, 0), tasks, new=True), Episode(support, query)


def losses_by_quadrature(name, mean, deviation, target):
    """Return E[loss(ŷ − y)] of Gaussian answers ŷ by numerical integration, from the definition."""
    loss = {
        "squared_error": lambda z: z**2,
        "huber": lambda z: 0.5 * z**2 if abs(z) < 1.0 else abs(z) - 0.5,
    }[name]

    def one(mean, deviation, target):
        def density(z):
            return loss(z) * scipy.stats.norm.pdf(z, mean - target, deviation)

        ends = mean - target + 12.0 * deviation * np.array([-1.0, 1.0])
        kinks = [z for z in (-1.0, 1.0) if ends[0] < z < ends[1]]
        return scipy.integrate.quad(density, *ends, points=kinks, epsabs=1e-12)[0]

    return np.vectorize(one)(mean, deviation, target)


def changed(samples, where):
    """Return other images where a sample's label is `where`."""
    other = jnp.asarray(RANDOM.uniform(size=samples.x.shape), samples.x.dtype)
    return Samples(jnp.where((samples.y == where)[..., None, None], other, samples.x), samples.y)


def differs(one, other):
    return any(
        bool(jnp.any(a != b))
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def test_gradients_of_selector_and_experts_are_those_of_a_hand_computation(regression):
    learner, state, batch = regression
    key = jax.random.key(3)
    found, _ = gradient(learner.loss, state, batch, key)
    model = state.model
    share = np.asarray([model.select(_input(batch, n)).probs for n in range(N)], float)
    chosen = Categorical(jnp.log(jnp.asarray(share, jnp.float32))).sample(
        jax.random.split(key, N + 1)[0]
    )
    chosen = np.asarray(chosen)
    assert set(chosen) == {0, 1}

    def answers(n, x):
        """Return mean and deviation of the chosen expert's answers, in NumPy."""
        network = model.experts.initial.network
        layer, _ = network.features.layers
        pick = lambda leaf: np.asarray(leaf, float)[chosen[n]]  # noqa: E731
        hidden = np.maximum(np.asarray(x, float) @ pick(layer.weight).T + pick(layer.bias), 0.0)
        outputs = hidden @ pick(network.head.weight).T + pick(network.head.bias)
        return outputs[:, 0], np.exp(0.5 * outputs[:, 1])

    on_support = [answers(n, batch.support.x[n]) for n in range(N)]
    prior_m = share.mean(axis=0)
    prior = {}
    for m in (0, 1):
        mean, deviation = (
            np.concatenate([on_support[n][part] for n in range(N) if chosen[n] == m])
            for part in (0, 1)
        )
        prior[m] = mean.mean(), np.sqrt(np.mean(deviation**2 + (mean - mean.mean()) ** 2))

    def kl(m, mean, deviation):
        centre, width = prior[m]
        ratio = (deviation**2 + (mean - centre) ** 2) / width**2
        return 0.5 * (ratio - 1.0) - np.log(deviation / width)

    def free_energies(m, mean, deviation, target):
        loss = losses_by_quadrature(learner.loss.utility.__name__, mean, deviation, target)
        return -loss - kl(m, mean, deviation) / BETA_EXPERT

    # Outputs are mean and log-variance: slopes by differences of the free energy itself.
    to_logits, to_outputs, h = np.zeros((N, 2)), np.zeros((2, 2)), 1e-4
    for n, m in enumerate(chosen):
        mean, deviation = on_support[n]
        target = np.asarray(batch.support.y[n], float)[:, 0]
        for part, (move, widen) in enumerate([(h, 1.0), (0.0, np.exp(0.5 * h))]):
            up = free_energies(m, mean + move, deviation * widen, target)
            down = free_energies(m, mean - move, deviation / widen, target)
            to_outputs[m, part] += np.mean(up - down) / (2 * h) / N
        mean, deviation = answers(n, batch.query.x[n])
        target = np.asarray(batch.query.y[n], float)[:, 0]
        judged = np.mean(free_energies(m, mean, deviation, target))
        ratio = np.log(share[n, m] / prior_m[m])
        gain = judged - (ratio + 1.0) / BETA_SELECTOR
        to_logits[n] = (np.eye(2)[m] - share[n]) * gain
    last = found.selector.network.layers[-1]
    np.testing.assert_allclose(last.bias, -to_logits.mean(axis=0), rtol=1e-4, atol=1e-5)
    head = found.experts.initial.network.head
    np.testing.assert_allclose(head.bias, -to_outputs, rtol=1e-3, atol=1e-5)


def _input(batch, n):
    from pinfactory.meta.experts import TaskInput

    support = Samples(batch.support.x[n], batch.support.y[n])
    return TaskInput(support, support.x)


def test_gradients_of_image_experts_and_their_selector_are_those_of_a_hand_computation(images):
    learner, state, batch = images
    key = jax.random.key(1)
    found, _ = gradient(learner.loss, state, batch, key)
    model, beta_selector, beta_expert = state.model, 20.0, 2.5
    share = np.asarray([model.select(_input(batch, n)).probs for n in range(N)], float)
    log_share = jnp.log(jnp.asarray(share, jnp.float32))
    chosen = np.asarray(Categorical(log_share).sample(jax.random.split(key, N + 1)[0]))
    assert set(chosen) == {0, 1}

    convolved = eqx.filter_jit(lambda network, x: jax.vmap(network.features)(x))

    def answers(n, samples):
        """Return p(y|x, m) of the chosen expert: its convolution is taken as it is."""
        network = model.expert(jnp.asarray(chosen[n])).initial.network
        features = np.asarray(convolved(network, samples.x[n]), float)
        head = network.head
        logits = features @ np.asarray(head.weight, float).T + np.asarray(head.bias, float)
        weight = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weight / weight.sum(axis=1, keepdims=True), np.asarray(samples.y[n])

    on_support = [answers(n, batch.support) for n in range(N)]
    prior = {
        m: np.mean([on_support[n][0] for n in range(N) if chosen[n] == m], axis=(0, 1))
        for m in (0, 1)
    }
    to_logits, to_head = np.zeros((N, 2)), np.zeros((2, 2))
    for n, m in enumerate(chosen):
        q, label = on_support[n]
        ratio = np.log(q / prior[m])
        kl = np.sum(q * ratio, axis=1, keepdims=True)
        to_head[m] += np.mean(np.eye(2)[label] - q - q * (ratio - kl) / beta_expert, axis=0) / N
        q, label = answers(n, batch.query)
        kl = np.sum(q * np.log(q / prior[m]), axis=1)
        judged = np.mean(np.log(q[np.arange(4), label]) - kl / beta_expert)
        ratio = np.log(share[n, m] / share.mean(axis=0)[m])
        to_logits[n] = (np.eye(2)[m] - share[n]) * (judged - (ratio + 1.0) / beta_selector)
    head = found.experts.initial.network.head
    np.testing.assert_allclose(head.bias, -to_head, rtol=1e-4, atol=1e-5)
    last = found.selector.network.layers[-1]
    np.testing.assert_allclose(last.bias, -to_logits.mean(axis=0), rtol=1e-4, atol=1e-5)


def test_experts_do_not_see_the_query_part_and_the_selector_does(images):
    learner, state, batch = images
    key = jax.random.key(0)
    query = changed(changed(batch.query, 0), 1)
    one, _ = gradient(learner.loss, state, batch, key)
    other, _ = gradient(learner.loss, state, Episode(batch.support, query), key)
    assert not differs(one.experts, other.experts)
    assert differs(one.selector.network, other.selector.network)


def test_the_selector_sees_positives_only_and_never_teaches_the_autoencoder(images):
    learner, state, batch = images
    key = jax.random.key(0)
    other = changed(batch.support, 0)
    embedding = state.model.selector.embedding
    embed = eqx.filter_jit(embedding)
    same = (embed(Samples(part.x[0], part.y[0])) for part in (batch.support, other))
    np.testing.assert_array_equal(*same)
    found, _ = gradient(learner.loss, state, batch, key)
    x = jnp.concatenate([part.x[part.y == 1] for part in batch])
    slope = eqx.filter_jit(eqx.filter_grad(Reconstruction(), has_aux=True))
    alone, _ = slope(embedding.autoencoder, state, x, key)
    for one, wanted in zip(
        jax.tree.leaves(found.selector.embedding), jax.tree.leaves(alone), strict=True
    ):
        np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-6)


def test_ten_steps_begin_at_the_expert_and_are_adams(regression):
    _, state, batch = regression
    expert = state.model.expert(jnp.asarray(0)).initial
    support = Samples(batch.support.x[0], batch.support.y[0])
    unchanged = AdamSteps(squared_error, 0.01, 0)(expert, support)
    assert not differs(unchanged, expert)
    adapted = AdamSteps(squared_error, 0.01, 10)(expert, support)
    parameters, rest = eqx.partition(expert, eqx.is_inexact_array)
    adam = optax.adam(0.01)
    memory = adam.init(parameters)

    @jax.jit
    def slope(parameters):
        def loss(parameters):
            answers = jax.vmap(eqx.combine(parameters, rest))(support.x)
            return jnp.mean((answers.mean - support.y) ** 2 + answers.scale**2)

        return jax.grad(loss)(parameters)

    for _ in range(10):
        direction, memory = adam.update(slope(parameters), memory)
        parameters = optax.apply_updates(parameters, direction)
    for one, wanted in zip(
        jax.tree.leaves(eqx.filter(adapted, eqx.is_inexact_array)),
        jax.tree.leaves(parameters),
        strict=True,
    ):
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.optimised
def test_few_shot_learns_evaluates_and_is_stored(tmp_path):
    random = np.random.default_rng(1)
    patterns = random.uniform(size=(20, 8, 8)) > 0.5
    pictures = np.repeat(patterns, 6, axis=0) + 0.1 * random.normal(size=(120, 8, 8))
    tasks = ArrayTasks(pictures.astype(np.float32), np.arange(120) // 6, ways=2, shots=2, queries=2)
    learner = paper.few_shot(
        2, filters=4, max_iter=300, max_norm=0.3, inner_rate=0.03, random_state=0
    )
    learner.fit(tasks)
    linear = [
        layer for layer in learner.state_.model.selector.network.layers if hasattr(layer, "weight")
    ]
    for layer in linear:
        assert float(jnp.linalg.norm(layer.weight, axis=1).max()) <= 0.3 + 1e-6
    before = learner.evaluate(tasks, 100, inner_steps=0, routing="best").mean
    after = learner.evaluate(tasks, 100, routing="best").mean
    assert after > max(before, 0.6)
    learner.save(tmp_path / "few.pin")
    again = load(tmp_path / "few.pin")
    assert again.evaluate(tasks, 100, routing="best").mean == after


def test_sinusoids_learn_in_their_own_units():
    tasks = Sinusoids(shots=5, queries=5)
    learner = paper.sinusoids(2, max_iter=20, random_state=0).fit(tasks)
    np.testing.assert_array_equal(learner.scale_.y_deviation, 1.0)
    assert learner.state_.constraints.scale is None
    assert learner.state_.model.selector.embedding.size == 16
    assert float(learner.state_.learning_rate(jnp.asarray(19))) == pytest.approx(3e-4)


def test_settings_that_algorithm_1_does_not_have_are_refused():
    for name, value in (("balance", 0.5), ("n_initial_experts", 2), ("growth_fraction", 0.3)):
        with pytest.raises(ValueError, match=f"`{name}` has no effect in Algorithm 1"):
            paper.sinusoids(4, max_iter=1, **{name: value}).fit(Sinusoids())


def test_every_hidden_layer_of_the_selector_drops_half_of_its_units_in_training_alone():
    layers = [Dropout(0.5)]
    ones = jnp.ones(1000)
    kept = np.asarray(jax.jit(layers[0])(ones, key=jax.random.key(0)))
    assert set(kept.tolist()) == {0.0, 2.0}
    assert 0.4 < np.mean(kept > 0) < 0.6
    np.testing.assert_array_equal(layers[0](ones), ones)
    for n_experts, n_hidden in ((4, 2), (8, 3)):
        learner = paper.few_shot(n_experts)
        labels = jnp.zeros((1, 4), int)
        support = Samples(jnp.asarray(RANDOM.uniform(size=(1, 4, 28, 28)), jnp.float32), labels)
        tasks = TaskDescription((28, 28), 2, (0.0, 1.0), learner._utility(), True, support)
        selector = learner._task_selector(tasks, jax.random.key(0))
        found = [type(layer).__name__ for layer in selector.network.layers]
        assert found == ["Linear", "Lambda", "Dropout"] * n_hidden + ["Linear"]
        # 28 × 28 pixels become 4 × 4 places with 4 filters: "dimensionality 64".
        assert selector.embedding.size == 64
        sizes = [
            layer.out_features for layer in selector.network.layers if hasattr(layer, "weight")
        ]
        assert sizes == [32] * n_hidden + [n_experts]


def test_the_selector_is_trained_with_dropout(images):
    learner, state, batch = images
    dropped = eqx.tree_at(
        lambda s: s.model.selector.network.layers,
        state,
        (
            *state.model.selector.network.layers[:-1],
            Dropout(0.5),
            state.model.selector.network.layers[-1],
        ),
    )
    one, other = (gradient(learner.loss, dropped, batch, jax.random.key(k))[0] for k in (0, 1))
    silent = [
        np.all(np.asarray(g.selector.network.layers[-1].weight) == 0, axis=0) for g in (one, other)
    ]
    assert not np.array_equal(*silent)
