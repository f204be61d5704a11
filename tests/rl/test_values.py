import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinfactory import networks
from pinfactory.rl.values import Critics, compute_advantages

T, N = 7, 3
advantages = jax.jit(compute_advantages)


def draw(seed: int) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(seed)
    utility, value, next_value = random.normal(size=(3, T, N)).astype(np.float32)
    terminated = random.uniform(size=(T, N)) < 0.2
    done = terminated | (random.uniform(size=(T, N)) < 0.2)
    return utility, value, next_value, terminated, done


@given(st.integers(0, 1000), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
@settings(max_examples=20, deadline=None)
def test_advantages_are_the_discounted_sum_of_surprises_until_the_episode_ends(
    seed: int, gamma: float, trace: float
) -> None:
    utility, value, next_value, terminated, done = draw(seed)
    expected = np.zeros((T, N))
    for n in range(N):
        for t in range(T):
            for later in range(t, T):
                future = 0.0 if terminated[later, n] else next_value[later, n]
                delta = utility[later, n] + gamma * future - value[later, n]
                expected[t, n] += (gamma * trace) ** (later - t) * delta
                if done[later, n]:
                    break
    actual = advantages(*draw(seed), gamma, trace)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("terminated", "future"), [(True, 0.0), (False, 0.9 * 5.0)])
def test_a_truncated_episode_has_a_future_and_a_terminated_one_has_none(
    terminated: bool, future: float
) -> None:
    one = np.ones((1, 1), np.float32)
    gained = advantages(
        one, 2.0 * one, 5.0 * one, np.full((1, 1), terminated), np.full((1, 1), True), 0.9, 0.95
    )
    assert gained[0, 0] == pytest.approx(1.0 + future - 2.0)


def test_without_trace_they_are_the_one_step_advantages_of_the_paper() -> None:
    utility, value, next_value, _, _ = draw(0)
    never = np.zeros((T, N), bool)
    actual = advantages(utility, value, next_value, never, never, 0.9, 0.0)
    np.testing.assert_allclose(actual, utility + 0.9 * next_value - value, rtol=1e-5, atol=1e-6)


def test_another_unit_of_reward_changes_no_value_of_information() -> None:
    critics = Critics.build(
        jax.random.key(0), 3, lambda k: networks.mlp(2, 2, (4,), networks.tanh, key=k)
    )
    x = jnp.array([[0.3, -1.0], [2.0, 0.1]])
    before, after = critics(x), critics.rescaled(jnp.asarray(0.25))(x)
    assert before.shape == (2, 3, 2)
    np.testing.assert_allclose(after[..., 0], 0.25 * before[..., 0], rtol=1e-5)
    np.testing.assert_array_equal(after[..., 1], before[..., 1])
