import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy.integrate import quad

from pinfactory.core.families import Categorical
from pinfactory.rl import envs
from pinfactory.rl.actions import (
    BoxActions,
    DiscreteActions,
    MultiCategorical,
    MultiDiscreteActions,
    box_actions,
    env_actions,
    from_logits,
    invert_cdf,
    stored_actions,
)

BOX = BoxActions((-2.0,), (6.0,), (1,))


def grid(n: int) -> jax.Array:
    return jnp.linspace(0.5 / n, 1.0 - 0.5 / n, n)


def test_box_samples_stay_within_the_range() -> None:
    answer = BOX(jnp.array([3.0, 1.0]))
    actions = BOX.to_env(BOX.draw(jax.tree.map(lambda a: a[None], answer), grid(999)[:, None]))
    assert actions.min() >= -2.0
    assert actions.max() <= 6.0
    assert actions.std() > 0.1


@pytest.mark.parametrize("outputs", [[0.0, 0.0], [0.7, -1.0], [-0.4, 0.4]])
def test_density_of_box_actions_integrates_to_one(outputs: list[float]) -> None:
    answer = BOX(jnp.array(outputs))

    @jax.jit
    def density(action: jax.Array) -> jax.Array:
        own = BOX.from_env(action[None])
        return jnp.exp(answer.log_prob(own) - BOX.log_volume(own))

    total, _ = quad(lambda a: float(density(jnp.asarray(a))), -2.0, 6.0, epsabs=1e-4, epsrel=1e-4)
    assert total == pytest.approx(1.0, abs=1e-3)


def test_density_of_box_actions_is_that_of_their_histogram() -> None:
    answer = BOX(jnp.array([0.3, -0.5]))
    uniform = grid(200_000)[:, None]
    samples = BOX.to_env(BOX.draw(jax.tree.map(lambda a: a[None], answer), uniform))[:, 0]
    share, edges = np.histogram(np.asarray(samples), bins=40, range=(-1.0, 5.0))
    own = BOX.from_env(jnp.asarray(0.5 * (edges[1:] + edges[:-1]))[:, None])
    density = jnp.exp(answer.log_prob(own) - BOX.log_volume(own))
    np.testing.assert_allclose(density, share / 200_000 / np.diff(edges), atol=2e-3)


def test_unbounded_numbers_are_left_alone_and_keep_their_density() -> None:
    actions = box_actions(np.array([-np.inf, -1.0]), np.array([np.inf, 1.0]))
    u = jnp.array([[30.0, 0.5]])
    assert actions.to_env(u)[0, 0] == 30.0
    assert actions.log_volume(u)[0] == pytest.approx(np.log(1.0 - np.tanh(0.5) ** 2), rel=1e-5)
    np.testing.assert_allclose(actions.from_env(actions.to_env(u)), u, rtol=1e-5)


def test_boxes_of_any_shape_are_flattened_and_restored() -> None:
    actions = box_actions(-np.ones((2, 3)), np.ones((2, 3)))
    assert actions.n_outputs == 12
    u = 0.1 * jnp.arange(12.0).reshape(2, 6)
    assert actions.to_env(u).shape == (2, 2, 3)
    np.testing.assert_allclose(actions.from_env(actions.to_env(u)), u, rtol=1e-4, atol=1e-6)


def test_a_box_bounded_on_one_side_is_refused() -> None:
    with pytest.raises(ValueError, match="bounded on both sides or on neither"):
        box_actions(np.array([0.0]), np.array([np.inf]))


def test_draws_from_uniform_numbers_have_the_gaussians_quantiles() -> None:
    actions = box_actions(np.array([-np.inf]), np.array([np.inf]))
    answer = jax.tree.map(lambda a: a[None], actions(jnp.array([1.5, 0.3])))
    samples = actions.draw(answer, grid(500)[:, None])[:, 0]
    expected = scipy.stats.norm(1.5, float(answer.scale[0, 0])).ppf(np.asarray(grid(500)))
    np.testing.assert_allclose(samples, expected, rtol=1e-3, atol=1e-3)


def test_inverted_distribution_gives_outcomes_their_share_and_never_the_impossible() -> None:
    probs = jnp.array([0.0, 0.2, 0.5, 0.3, 0.0])
    choice = Categorical.from_logits(jnp.log(probs))
    many = jax.tree.map(lambda a: jnp.broadcast_to(a, (10_000, 5)), choice)
    drawn = invert_cdf(many, grid(10_000))
    np.testing.assert_allclose(np.bincount(drawn, minlength=5) / 10_000, probs, atol=1e-3)
    edge = jax.tree.map(lambda a: a[None], choice)
    assert invert_cdf(edge, jnp.array([1.0])) == 3
    assert invert_cdf(edge, jnp.array([2.0**-24])) == 1


def test_several_choices_at_once_sum_over_independent_ones() -> None:
    logits = jnp.array(np.random.default_rng(0).normal(size=(2, 2, 3)), jnp.float32)
    one, other = (from_logits(each, (3, 2)) for each in logits)
    p, q = np.asarray(one.choices.probs), np.asarray(other.choices.probs)
    assert p[1, 2] == 0.0
    entropy = scipy.stats.entropy(p[0]) + scipy.stats.entropy(p[1, :2])
    divergence = scipy.stats.entropy(p[0], q[0]) + scipy.stats.entropy(p[1, :2], q[1, :2])
    assert one.entropy() == pytest.approx(entropy, rel=1e-5)
    assert one.kl(other) == pytest.approx(divergence, rel=1e-4)
    assert one.log_prob(jnp.array([2, 1])) == pytest.approx(np.log(p[0, 2] * p[1, 1]), rel=1e-5)


def test_merged_choices_have_the_mean_of_every_marginal() -> None:
    logits = jnp.array(np.random.default_rng(1).normal(size=(4, 2, 3)), jnp.float32)
    many = jax.vmap(lambda each: from_logits(each, (3, 3)))(logits)
    merged = many.merge(jnp.array([0.1, 0.2, 0.3, 0.4]))
    expected = np.einsum("n,ndk->dk", [0.1, 0.2, 0.3, 0.4], many.choices.probs)
    assert isinstance(merged, MultiCategorical)
    np.testing.assert_allclose(merged.choices.probs, expected, rtol=1e-5)


def test_multi_discrete_draws_stay_below_their_sizes() -> None:
    actions = MultiDiscreteActions((2, 4))
    answer = jax.vmap(actions)(jnp.zeros((100, actions.n_outputs)))
    drawn = actions.draw(answer, jnp.stack([grid(100), grid(100)], axis=1))
    assert drawn.shape == (100, 2)
    assert sorted(set(np.asarray(drawn[:, 0]))) == [0, 1]
    assert sorted(set(np.asarray(drawn[:, 1]))) == [0, 1, 2, 3]


def test_discrete_actions_are_counted_from_the_first() -> None:
    actions = DiscreteActions(3, first=5)
    answer = actions(jnp.array([0.0, 4.0, 1.0]))
    assert actions.to_env(actions.mode(answer)) == 6
    assert actions.from_env(jnp.array(6)) == 1


def test_native_spaces_are_known() -> None:
    assert env_actions(envs.CartPole().action_space) == DiscreteActions(2)
    assert env_actions(envs.Pendulum().action_space) == BoxActions((-2.0,), (2.0,), (1,))


@pytest.mark.parametrize(
    "actions",
    [
        DiscreteActions(3, -1),
        MultiDiscreteActions((2, 3)),
        BOX,
        box_actions(np.full((2, 1), -np.inf), np.full((2, 1), np.inf)),
    ],
)
def test_actions_are_known_again_from_their_fields(actions) -> None:
    assert stored_actions(type(actions).__name__, dict(vars(actions))) == actions


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Actions", {}),
        ("DiscreteActions", {"n": 2, "first": 2**63}),
        ("DiscreteActions", {"n": 2, "first": math.inf}),
        ("DiscreteActions", {"n": 0}),
        ("MultiDiscreteActions", {"sizes": (2, 0)}),
        ("BoxActions", {"low": (0.0,), "high": (1.0,), "shape": (2,)}),
        ("BoxActions", {"low": (0.0,), "high": (math.nan,), "shape": (1,)}),
        ("BoxActions", {"low": (-1e300,), "high": (1e300,), "shape": (1,)}),
        ("BoxActions", {"low": (1.0,), "high": (0.0,), "shape": (1,)}),
    ],
)
def test_actions_that_nothing_can_take_are_refused(kind, fields) -> None:
    with pytest.raises(ValueError, match="must be"):
        stored_actions(kind, fields)
