"""Policies that a gradient step adapts, on a task whose best return is known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.baselines.rl_gradient import MAMLPolicy, ProMP
from pinfactory.core.families import Gaussian
from pinfactory.core.hierarchy import FamilyExpert
from pinfactory.networks import linear
from pinfactory.rl.actions import BoxActions
from pinfactory.rl.policy import ActionSample
from pinfactory.rl.values import Experience
from point_task import best_return, point_tasks

SMALL = {"n_tasks": 32, "n_steps": 80, "hidden": (32, 32), "gamma": 0.9}


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("method", [MAMLPolicy, ProMP])
def test_one_gradient_step_finds_the_sign_of_a_motor(method) -> None:
    learner = method(point_tasks(), **SMALL)
    untrained = learner.evaluate(n_tasks=128).mean
    learner.learn(60)
    before, after = (learner.evaluate(n_tasks=128, steps=steps).mean for steps in (0, 1))
    # Without knowing the sign nothing beats standing still: 20 steps at a mean square of 1/3.
    assert before < -20 / 3
    assert after > -20 / 3
    assert after > untrained
    assert after <= best_return(shakes=0) + 0.2
    assert learner.num_timesteps == 60 * 2 * 32 * 80


@pytest.mark.parametrize("method", [MAMLPolicy, ProMP])
def test_the_inner_step_is_the_policy_gradient(method, rng: np.random.Generator) -> None:
    """For a linear mean and a fixed deviation the gradient has a closed form."""
    rule = method(point_tasks(), inner_rate=0.1)._learner
    actions = BoxActions((-1.0,), (1.0,), (1,))
    policy = FamilyExpert(linear(1, 2, key=jax.random.key(0)), actions)
    x = jnp.asarray(rng.normal(size=(50, 1)), jnp.float32)
    answer = jax.vmap(policy)(x)
    assert isinstance(answer, Gaussian)
    action = answer.mean + answer.scale * jnp.asarray(rng.normal(size=(50, 1)), jnp.float32)
    advantage = jnp.asarray(rng.normal(size=50), jnp.float32)
    own = Experience(x, ActionSample(action, answer.log_prob(action), answer), advantage, advantage)
    moved = eqx.filter_jit(rule.adapt)(policy, own)
    score = (action - answer.mean) / answer.scale**2
    expected = 0.1 * np.mean(np.asarray(score)[:, 0] * np.asarray(advantage) * np.asarray(x)[:, 0])
    difference = moved.network.weight[0, 0] - policy.network.weight[0, 0]
    np.testing.assert_allclose(difference, expected, rtol=1e-3)


def test_training_is_watched_as_that_of_an_agent() -> None:
    steps = []
    learner = ProMP(point_tasks(), n_tasks=4, n_steps=8, hidden=(8,), seed=3)
    learner.learn(2, lambda progress: steps.append(progress.step)).learn(3, None)
    assert steps == [1, 2]
    assert [progress.step for progress in learner.history_] == [1, 2, 3, 4, 5]
    assert learner.num_timesteps == 5 * 2 * 4 * 8
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):  # settings of the process
        again = ProMP(point_tasks(), n_tasks=4, n_steps=8, hidden=(8,), seed=3).learn(5)
        returns = again.evaluate(n_tasks=4).returns
    np.testing.assert_array_equal(learner.evaluate(n_tasks=4).returns, returns)
    assert repr(learner).endswith("hidden=(8,), n_steps=8, n_tasks=4, seed=3)")
