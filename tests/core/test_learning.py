from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import softmax
from scipy.stats import norm

from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Constraints, Fixed, Priors, Schedule
from pinfactory.core.families import Categorical, Gaussian
from pinfactory.core.hierarchy import Expert, FamilyExpert, Hierarchy, assemble, stack
from pinfactory.core.information import marginal
from pinfactory.core.learning import CommitteeLoss, Data, Learner, scan
from pinfactory.core.training import Run, train


def log_likelihood(answer, target):
    return answer.log_prob(target)


def expected_utility(answer, utilities):
    return jnp.sum(answer.probs * utilities)


class Table(eqx.Module):
    """A free parameter for every input."""

    values: jax.Array

    def __call__(self, x, *, key=None):
        return self.values[x]


class FixedExpert(Expert):
    """A unit Gaussian that does not learn."""

    mean: jax.Array

    def __call__(self, x, *, key=None):
        return jax.lax.stop_gradient(Gaussian(self.mean[None], jnp.zeros(1)))


def learn(learner, hierarchy, data, betas, steps, *, learning_rate, batches=None):
    first = jax.tree.map(lambda leaf: leaf[0], data.x)
    priors = Priors.running(hierarchy(first), 0.99, 0.99)
    resources = tuple(Fixed(beta) for beta in betas)
    state = learner.init(hierarchy, Constraints(priors, resources), learning_rate=learning_rate)
    state = jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, state)
    run = Run.start(jax.random.key(0)[None], state)
    state = train(learner, run, data, steps=steps, batches=batches).run.state
    return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, state)


def test_linear_experts_together_learn_what_one_cannot(circles):
    learner = Learner(CommitteeLoss(log_likelihood))

    def init(key, n_experts):
        hierarchy = assemble(
            key,
            lambda k: eqx.nn.MLP(2, 4, 16, 1, activation=jnp.tanh, key=k),
            lambda k: FamilyExpert(eqx.nn.Linear(2, 2, key=k), Categorical.from_logits),
            4,
        )
        hierarchy = eqx.tree_at(lambda h: h.available, hierarchy, jnp.arange(4) < n_experts)
        priors = Priors.running(hierarchy(jnp.zeros(2)), 0.99, 0.99)
        return learner.init(
            hierarchy, Constraints(priors, (Fixed(25.0), Fixed(5.0))), learning_rate=3e-3
        )

    keys = jax.random.split(jax.random.key(2), 4)
    run = Run.start(keys, stack([init(k, n) for k, n in zip(keys, (4, 4, 4, 1), strict=True)]))
    state = train(learner, run, circles, steps=3000, batches=Epochs(500, 32)).run.state

    @eqx.filter_jit
    @eqx.filter_vmap
    def accuracy(hierarchy):
        answer = marginal(jax.vmap(hierarchy)(circles.x))
        return jnp.mean(jnp.argmax(answer.log_probs, axis=-1) == circles.y)

    *committees, alone = accuracy(state.model)
    assert min(committees) > 0.95
    assert alone < 0.65


@pytest.mark.parametrize("expectation", ["exact", "sampled"])
def test_log_likelihood_with_free_experts_gives_the_mixture_posterior(rng, expectation):
    """β₁ = 1 and β₂ → ∞: p(m|x) = p(m) p(x|m) / p(x), with p(m) as EM finds it."""
    means = np.array([-2.0, 0.0, 2.0])
    y = np.repeat(means, [2, 6, 4]) + rng.normal(size=12)
    density = norm.pdf(y[:, None], means)
    p_m = np.full(3, 1 / 3)
    for _ in range(2000):
        posterior = p_m * density / (density @ p_m)[:, None]
        p_m = posterior.mean(axis=0)

    experts = FixedExpert(jnp.asarray(means, jnp.float32))
    hierarchy = Hierarchy(Table(jnp.zeros((12, 3))), experts, jnp.ones(3, bool))
    x = jnp.arange(12)
    data = Data(x, jnp.asarray(y, jnp.float32)[:, None], jnp.ones(12))
    learner = Learner(CommitteeLoss(log_likelihood, expectation))
    # Many copies of each input, so that sampled experts average out.
    batches = Epochs(12, 252)
    state = learn(learner, hierarchy, data, (1.0, 1e6), 4000, learning_rate=5e-3, batches=batches)
    learned = jax.vmap(state.model)(x).responsibilities
    np.testing.assert_allclose(learned, posterior, atol=0.08 if expectation == "sampled" else 0.02)


def test_learning_ends_where_the_coupled_equations_hold(rng):
    """Equations 3, written out, map what was learned onto itself."""
    table, beta_selector, beta_expert = rng.normal(size=(4, 4)), 3.0, 1.5
    hierarchy = Hierarchy(
        Table(jnp.asarray(rng.normal(size=(4, 2)), jnp.float32)),
        FamilyExpert(
            Table(jnp.asarray(0.3 * rng.normal(size=(2, 4, 4)), jnp.float32)),
            Categorical.from_logits,
        ),
        jnp.ones(2, bool),
    )
    x = jnp.arange(4)
    data = Data(x, jnp.asarray(table, jnp.float32), jnp.ones(4))
    learner = Learner(CommitteeLoss(expected_utility))
    state = learn(learner, hierarchy, data, (beta_selector, beta_expert), 5000, learning_rate=0.02)
    decision = jax.vmap(state.model)(x)
    p_m_x = np.asarray(decision.responsibilities, np.float64)
    p_y_xm = np.asarray(decision.answers.probs, np.float64)

    p_m = p_m_x.mean(axis=0)
    p_y_m = np.einsum("xm,xmy->my", p_m_x / p_m_x.sum(axis=0), p_y_xm)
    kl = np.sum(p_y_xm * np.log(p_y_xm / p_y_m), axis=-1)
    free_energy = np.einsum("xmy,xy->xm", p_y_xm, table) - kl / beta_expert
    best_selection = softmax(np.log(p_m) + beta_selector * free_energy, axis=1)
    best_answers = softmax(np.log(p_y_m) + beta_expert * table[:, None], axis=2)
    np.testing.assert_allclose(p_m_x, best_selection, atol=0.01)
    np.testing.assert_allclose(p_y_xm, best_answers, atol=0.01)
    # Not the trivial solution, in which experts are alike.
    assert np.ptp(p_m_x[:, 0]) > 0.5


def test_rows_of_weight_zero_teach_nothing(linear_hierarchy):
    learner = Learner(CommitteeLoss(log_likelihood))
    hierarchy = linear_hierarchy(jax.random.key(0), 2)
    priors = Priors.running(hierarchy(jnp.zeros(2)), 0.9, 0.9)
    state = learner.init(hierarchy, Constraints(priors, (Fixed(5.0), Fixed(5.0))))
    data = Data(jnp.ones((4, 2)), jnp.zeros(4, int), jnp.zeros(4))
    after, info = eqx.filter_jit(learner.step)(jax.random.key(0), state, data)
    np.testing.assert_allclose(info.objective, 0.0, atol=1e-7)
    assert eqx.tree_equal(after.model, state.model)
    assert eqx.tree_equal(
        after.constraints.priors.stages[1].family, priors.stages[1].family, rtol=1e-6
    )


def test_a_batch_counts_as_much_as_its_rows_weigh(linear_hierarchy):
    """Gradients of batches of two have those of all rows as their mean, whatever the weights."""
    hierarchy = linear_hierarchy(jax.random.key(0), 2)
    priors = Priors.uniform(hierarchy(jnp.zeros(2)))
    constraints = Constraints(priors, (Fixed(5.0), Fixed(5.0)))
    loss = CommitteeLoss(log_likelihood)
    state = Learner(loss).init(hierarchy, constraints)
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(6, 2)), jnp.float32)
    data = Data(x, jnp.asarray([0, 1, 0, 1, 1, 1]), jnp.asarray([0.1, 0.1, 0.1, 0.1, 0.1, 5.5]))

    @eqx.filter_jit
    def gradient(batch):
        descend = eqx.filter_grad(lambda model: loss(model, state, batch, jax.random.key(0))[0])
        return descend(hierarchy)

    parts = [
        gradient(Data(data.x[two], data.y[two], data.weight[two]))
        for two in (slice(0, 2), slice(2, 4), slice(4, 6))
    ]
    mean = jax.tree.map(lambda *leaves: sum(leaves) / 3, *parts)
    for leaf, expected in zip(*map(jax.tree.leaves, (mean, gradient(data))), strict=True):
        np.testing.assert_allclose(leaf, expected, atol=1e-6)


class Noisy(Expert):
    """An answer that is drawn anew with every key."""

    mean: jax.Array

    def __call__(self, x, *, key=None):
        return Gaussian(self.mean[None] + jax.random.normal(key, (1,)), jnp.zeros(1))


def test_every_row_and_every_step_has_a_key_of_its_own():
    """A network that is random, as one with dropout is, draws for each row and step anew."""
    hierarchy = Hierarchy(Table(jnp.zeros((1, 1))), Noisy(jnp.zeros(1)), jnp.ones(1, bool))
    priors = Priors.running(hierarchy(jnp.asarray(0), key=jax.random.key(0)), 0.9, 0.9)
    learner = Learner(CommitteeLoss(lambda answer, target: answer.mean[0]))
    state = learner.init(hierarchy, Constraints(priors, (Fixed(1.0), Fixed(1.0))))

    @eqx.filter_jit
    def drawn(key, weights):
        _, info = learner.step(key, state, Data(jnp.zeros(3, int), jnp.zeros(3), weights))
        return info.utility

    # The same input in three rows, of which one alone counts.
    draws = [float(drawn(jax.random.key(k), row)) for k in range(2) for row in np.eye(3)]
    assert len(set(draws)) == 6


def test_weight_decay_shrinks_parameters_in_proportion(linear_hierarchy):
    learner = Learner(CommitteeLoss(log_likelihood))
    hierarchy = linear_hierarchy(jax.random.key(0), 2)
    priors = Priors.running(hierarchy(jnp.zeros(2)), 0.9, 0.9)
    resources = (Fixed(5.0), Fixed(5.0))
    data = Data(jnp.ones((4, 2)), jnp.zeros(4, int), jnp.ones(4))
    step = eqx.filter_jit(learner.step)
    plain, decayed = (
        step(
            jax.random.key(0),
            learner.init(
                hierarchy,
                Constraints(priors, resources),
                learning_rate=0.1,
                weight_decay=jnp.asarray(decay),
            ),
            data,
        )[0].model.selector.weight
        for decay in (0.0, 0.5)
    )
    np.testing.assert_allclose(plain - decayed, 0.05 * hierarchy.selector.weight, rtol=1e-4)


def test_averaged_parameters_are_the_mean_of_the_last_steps(linear_hierarchy):
    learner = Learner(CommitteeLoss(log_likelihood), keep_average=True)
    hierarchy = linear_hierarchy(jax.random.key(0), 2)
    priors = Priors.running(hierarchy(jnp.zeros(2)), 0.9, 0.9)
    state = learner.init(
        hierarchy, Constraints(priors, (Fixed(5.0), Fixed(5.0))), learning_rate=0.1
    )
    data = Data(jnp.ones((4, 2)), jnp.asarray([0, 1, 1, 0]), jnp.ones(4))
    step = eqx.filter_jit(learner.step)
    expected = np.asarray(hierarchy.selector.weight)
    for count in range(1, 21):
        state, _ = step(jax.random.key(count), state, data)
        weight = np.asarray(state.model.selector.weight)
        expected = expected + 10 / (count + 10) * (weight - expected)
    averaged = state.averaged()
    np.testing.assert_allclose(averaged.model.selector.weight, expected, rtol=1e-5)
    assert (averaged.model.selector.weight != state.model.selector.weight).any()
    assert eqx.tree_equal(averaged.optimiser, state.optimiser)


def test_any_loss_and_any_optimiser_serve(rng):
    """Least squares by Optax's own loop, and by the learner, give the same weights."""
    x, y = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((20, 3), (20,)))
    model = {"weight": jnp.ones(3), "bias": jnp.zeros(())}
    optimiser = optax.chain(optax.clip_by_global_norm(0.5), optax.scale_by_adam())

    def error(model, batch):
        return jnp.mean((batch[0] @ model["weight"] + model["bias"] - batch[1]) ** 2)

    def loss(model, state, batch, key):
        value = error(model, batch)
        return value, (state.constraints, {"loss": value})

    learner = Learner(loss, optimiser)
    state = learner.init(model, learning_rate=Schedule.cosine_decay(0.1, 10))
    rates = optax.cosine_decay_schedule(0.1, 10)
    expected, kept = model, optimiser.init(model)
    for step in range(8):
        state, info = eqx.filter_jit(learner.step)(jax.random.key(0), state, (x, y))
        np.testing.assert_allclose(info["loss"], error(expected, (x, y)), rtol=1e-4)
        change, kept = optimiser.update(jax.grad(error)(expected, (x, y)), kept)
        change = jax.tree.map(partial(jnp.multiply, -rates(step)), change)
        expected = optax.apply_updates(expected, change)
    assert eqx.tree_equal(state.model, expected, rtol=1e-4, atol=1e-6)
    assert state.average is None


def test_a_scan_keeps_what_is_no_array():
    state = (jnp.tanh, {"sum": jnp.zeros(2), "name": "a"})

    def step(state, x):
        function, parts = state
        total = parts["sum"] + function(x)
        return (function, parts | {"sum": total}), total.sum()

    xs = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    (function, parts), sums = scan(step, state, jnp.asarray(xs))
    assert function is jnp.tanh
    assert parts["name"] == "a"
    np.testing.assert_allclose(parts["sum"], np.tanh(xs).sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(sums, np.cumsum(np.tanh(xs).sum(axis=1)), rtol=1e-4, atol=1e-5)
    again, _ = scan(lambda s, _: step(s, jnp.ones(2)), state, None, 3)
    np.testing.assert_allclose(again[1]["sum"], 3 * np.tanh(1.0), rtol=1e-5)
