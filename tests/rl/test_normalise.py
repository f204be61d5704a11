import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core.constraints import UtilityScale
from pinfactory.rl.normalise import (
    MAX_DEVIATION,
    Moments,
    discounted_rewards,
    scale_returns,
    start_scale,
)

update = jax.jit(lambda moments, *rows: moments.update(*rows))


def test_moments_over_batches_are_those_of_all_rows(rng: np.random.Generator) -> None:
    batches = [rng.normal(50.0, [1.0, 30.0], (n, 2)).astype(np.float32) for n in (5, 40, 300)]
    moments = Moments.start(2)
    for batch in batches:
        moments = update(moments, batch.reshape(5, -1, 2))
    together = np.concatenate(batches)
    np.testing.assert_allclose(moments.mean, together.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moments.variance, together.var(0), rtol=1e-3)


def test_rows_of_no_weight_do_not_count(rng: np.random.Generator) -> None:
    x = rng.normal(size=(20, 3)).astype(np.float32)
    weight = (np.arange(20) < 12).astype(np.float32)
    moments = update(Moments.start(3), x, weight)
    np.testing.assert_allclose(moments.mean, x[:12].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(moments.variance, x[:12].var(0), rtol=1e-4)


def test_before_anything_was_seen_observations_are_left_alone() -> None:
    x = jnp.array([0.5, -3.0])
    np.testing.assert_allclose(Moments.start(2)(x), x, rtol=1e-6)


def test_a_number_that_never_changes_and_one_far_away_stay_finite() -> None:
    moments = update(Moments.start(2), np.tile(np.array([2.0, 0.0], np.float32), (8, 1)))
    x = moments(jnp.array([2.0, 1e30]))
    assert x[0] == 0.0
    assert x[1] == MAX_DEVIATION


def test_rewards_so_far_are_discounted_and_start_anew_with_the_episode(
    rng: np.random.Generator,
) -> None:
    reward = rng.normal(size=(6, 2)).astype(np.float32)
    done = rng.uniform(size=(6, 2)) < 0.3
    start = np.array([1.0, -2.0], np.float32)
    so_far, expected = start.copy(), []
    for r, d in zip(reward, done, strict=True):
        so_far = 0.9 * so_far + r
        expected.append(so_far)
        so_far = np.where(d, 0.0, so_far)
    last, actual = jax.jit(discounted_rewards)(reward, done, start, 0.9)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, so_far, rtol=1e-5, atol=1e-6)


def test_the_scale_of_returns_forgets_what_they_were_in_the_beginning(
    rng: np.random.Generator,
) -> None:
    # Such as returns that grow while an agent learns.
    deviations = np.repeat([1.0, 10.0], 500)[:, None, None]
    rewards = (deviations * rng.normal(size=(1000, 1, 200))).astype(np.float32)

    def take_in(scale: UtilityScale, rewards: jax.Array) -> tuple[UtilityScale, jax.Array]:
        never, ones = jnp.zeros((1, 200), bool), jnp.ones((1, 200))
        scaling = scale_returns(scale, rewards, never, jnp.zeros(200), jnp.zeros(()), ones)
        return scaling.scale, scaling.unit

    unit = jax.lax.scan(take_in, start_scale(), rewards)[1][-1]
    assert unit == pytest.approx(0.1, rel=0.05)


def test_observations_are_not_even_clipped_before_anything_was_seen() -> None:
    far = jnp.array([[1000.0, -50.0]])
    np.testing.assert_array_equal(Moments.start(2)(far), far)
