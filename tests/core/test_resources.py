import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pinfactory.core.batches import Epochs
from pinfactory.core.constraints import Budget, Constraints, Fixed, Priors, Scheduled, UtilityScale
from pinfactory.core.hierarchy import stack
from pinfactory.core.information import measure
from pinfactory.core.learning import CommitteeLoss, Data, Learner
from pinfactory.core.training import Run, train


def log_likelihood(answer, target):
    label, unit = target
    return unit * answer.log_prob(label)


LEARNER = Learner(CommitteeLoss(log_likelihood))
BATCHES = Epochs(500, 32)


def with_unit(data, unit):
    return Data(data.x, (data.y, jnp.full(len(data.y), unit)), data.weight)


def beta_after(resource, steps):
    for _ in range(steps):
        resource = resource.update(jnp.asarray(0.0))
    return float(resource.beta)


def test_fixed_stays():
    assert beta_after(Fixed(3.0), 5) == 3.0


SHAPES = {
    "linear": optax.linear_schedule(2.0, 50.0, 8),
    "exponential": optax.exponential_decay(2.0, 8, 25.0, end_value=50.0),
    "cosine": lambda step: 50.0 + optax.cosine_decay_schedule(-48.0, 8)(step),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_schedules_go_from_start_to_end_and_stay(shape):
    for step in (0, 1, 4, 7, 8, 11):
        actual = beta_after(Scheduled(2.0, 50.0, 8.0, shape), step)
        np.testing.assert_allclose(actual, SHAPES[shape](step), rtol=1e-5)


def test_a_constant_schedule_is_one_whose_ends_are_equal():
    assert beta_after(Scheduled(5.0, 5.0, 10.0, "exponential"), 3) == 5.0


def test_replicas_may_have_schedules_of_their_own():
    ends = jnp.asarray([10.0, 20.0, 40.0])
    halfway = jax.vmap(lambda end: Scheduled(2.0, end, 8.0, "linear", step=4).beta)(ends)
    np.testing.assert_allclose(halfway, [6.0, 11.0, 21.0], rtol=1e-6)


def test_budget_follows_dual_ascent_within_its_bounds():
    steady = Budget(1.0, average=0.2, rate=0.5)
    expected = np.exp(0.5 * (np.log(2) - 0.2))
    np.testing.assert_allclose(steady.update(jnp.asarray(0.2)).beta, expected, rtol=1e-5)
    rising = steady.update(jnp.asarray(0.3))
    forecast = 0.3 + 1000 * 0.01 * 0.1
    np.testing.assert_allclose(rising.beta, np.exp(0.5 * (np.log(2) - forecast)), rtol=1e-5)
    np.testing.assert_allclose(rising.average, 0.201, rtol=1e-5)
    assert beta_after(Budget(8.0, rate=10.0), 20) == pytest.approx(1e4, rel=1e-4)
    assert Budget(0.0, rate=1e3).update(jnp.asarray(5.0)).beta == pytest.approx(1e-3, rel=1e-4)


# bits for the selector, bits for the experts
BUDGETS = [(0.5, None), (1.0, None), (1.5, None), (None, 0.2), (None, 0.4), (8.0, None)]


@pytest.fixture(scope="module")
def budgeted(linear_hierarchy, xor_blobs):
    """All budgets, two seeds each, trained side by side; a rate of zero keeps a β as it is."""

    def init(key, budgets):
        hierarchy = linear_hierarchy(key, 4)
        resources = tuple(
            Budget(0.0, np.log(5.0), 0.0) if bits is None else Budget(bits) for bits in budgets
        )
        priors = Priors.running(hierarchy(jnp.zeros(2)), 0.99, 0.99)
        return LEARNER.init(hierarchy, Constraints(priors, resources), learning_rate=3e-3)

    keys = jnp.repeat(jax.random.split(jax.random.key(0), 2), len(BUDGETS))
    run = Run.start(keys, stack([init(k, b) for k, b in zip(keys, 2 * BUDGETS, strict=True)]))
    data = with_unit(xor_blobs, 1.0)
    state = train(LEARNER, run, data, steps=4000, chunk=1000, batches=BATCHES).run.state

    @eqx.filter_jit
    @eqx.filter_vmap
    def report(hierarchy):
        return measure(jax.vmap(hierarchy)(xor_blobs.x))

    return report(state.model), jnp.exp(state.constraints.resources[0].log_beta)


@pytest.mark.parametrize("case", range(5), ids=[str(budget) for budget in BUDGETS[:5]])
def test_training_meets_a_budget_in_bits(budgeted, case):
    info, _ = budgeted
    selector_bits, expert_bits = BUDGETS[case]
    measured = info.experts if selector_bits is None else info.selectors[0]
    wanted = expert_bits if selector_bits is None else selector_bits
    np.testing.assert_allclose(measured[case :: len(BUDGETS)], wanted, atol=0.1)


def test_a_budget_beyond_use_ends_at_the_highest_beta_without_harm(budgeted):
    info, beta = budgeted
    np.testing.assert_allclose(beta[5 :: len(BUDGETS)], 1e4, rtol=1e-3)
    # Labels hold one bit, and the committee answers with it.
    np.testing.assert_allclose(info.overall[5 :: len(BUDGETS)], 1.0, atol=0.05)


def test_utility_scale_is_the_discounted_mean_and_deviation(rng):
    scale, mass, first, second = UtilityScale(momentum=0.9), 0.0, 0.0, 0.0
    for _ in range(6):
        utility, weights = 5 + 3 * rng.normal(size=20), rng.dirichlet(np.ones(20))
        scale = scale.update(jnp.asarray(utility, jnp.float32), jnp.asarray(weights, jnp.float32))
        mass, first = 0.9 * mass + 1, 0.9 * first + weights @ utility
        second = 0.9 * second + weights @ utility**2
    mean = first / mass
    np.testing.assert_allclose(scale.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(scale.variance, second / mass - mean**2, rtol=1e-3)
    deviation = np.sqrt(second / mass - mean**2)
    np.testing.assert_allclose(scale(jnp.asarray([2.0])), 2.0 / deviation, rtol=1e-3)


def test_utilities_without_weight_or_spread_leave_the_scale_usable():
    nothing = UtilityScale().update(jnp.ones(3), jnp.zeros(3))
    assert nothing(jnp.asarray(2.0)) == 2.0
    constant = UtilityScale().update(jnp.full(3, 7.0), jnp.full(3, 1 / 3))
    assert np.isfinite(constant(jnp.asarray(7.0)))


def test_multiplying_every_utility_by_a_thousand_leaves_the_partition(linear_hierarchy, xor_blobs):
    units = jnp.asarray([1.0, 1000.0])

    def init(key):
        hierarchy = linear_hierarchy(key, 4)
        priors = Priors.running(hierarchy(jnp.zeros(2)), 0.99, 0.99)
        constraints = Constraints(priors, (Fixed(5.0), Fixed(2.0)), UtilityScale())
        return LEARNER.init(hierarchy, constraints, learning_rate=3e-3)

    def learned(unit):
        run = Run.start(jax.random.key(0)[None], stack([init(jax.random.key(0))]))
        data = with_unit(xor_blobs, unit)
        return train(LEARNER, run, data, steps=1500, batches=BATCHES).run.state

    state = jax.tree.map(
        lambda *leaves: jnp.concatenate(leaves) if eqx.is_array(leaves[0]) else leaves[0],
        *(learned(unit) for unit in units),
    )

    @eqx.filter_jit
    @eqx.filter_vmap
    def responsibilities(hierarchy):
        return jax.vmap(hierarchy)(xor_blobs.x).responsibilities

    small, large = np.asarray(responsibilities(state.model))
    assert small.max(axis=1).mean() > 0.6
    np.testing.assert_allclose(large, small, atol=0.02)
    mean = state.constraints.scale.mean
    np.testing.assert_allclose(mean[1] / mean[0], 1000, rtol=0.01)
