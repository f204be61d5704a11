"""Families of tasks: what is drawn, and that different bodies step together."""

import dataclasses
from operator import itemgetter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from pinfactory.rl.envs import Pendulum, reset_all, step_all
from pinfactory.rl.meta import (
    Either,
    ParameterFamily,
    TaskFamily,
    Uniform,
    cart_pole_tasks,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
    pendulum_tasks,
)

# The paper's table, Section 6.3.
TABLE = {
    "distance penalty": ((1e-3, 1e-1), (1e-3, 1e-2)),
    "goal": ((0.3, 0.4), (0.0, 0.3)),
    "start": ((-0.15, 0.15), (-0.25, 0.25)),
    "torque": ((0.0, 5.0), (0.0, 3.0)),
    "actuation": ((185.0, 215.0), (175.0, 225.0)),
    "gravity": ((0.01, 4.9), (4.9, 9.8)),
}


@pytest.mark.parametrize("column", [0, 1])
def test_double_pendulums_follow_the_table_of_the_paper(column: int) -> None:
    family = (double_pendulum_tasks(), double_pendulum_new_tasks())[column]
    params = family.draw(np.random.default_rng(0), 4000)
    drawn = {
        "distance penalty": params.distance_cost[:, 0],
        "goal": 2.3 - params.goal[:, 1],
        "start": params.start_position[:, 2],
        "torque": params.applied_force[:, 0],
        "actuation": params.gear,
        "gravity": -params.gravity[:, 1],
    }
    for name, values in drawn.items():
        low, high = TABLE[name][column]
        unit = (np.asarray(values) - low) / (high - low)
        assert stats.kstest(unit, "uniform").pvalue > 1e-3, name
    inverted = int(np.sum(np.asarray(params.control_sign) == -1.0))
    assert stats.binomtest(inverted, 4000, 0.5).pvalue > 1e-3


@pytest.mark.parametrize("make", [double_pendulum_tasks, cart_pole_tasks, pendulum_tasks])
def test_sixty_four_bodies_step_together_as_each_would_alone(make) -> None:
    family = make()
    env, params = family.env, family.draw(np.random.default_rng(1), 64)
    assert isinstance(family, TaskFamily)
    states, _ = jax.jit(lambda key: reset_all(env, key, params))(jax.random.key(0))
    actions = jnp.ones((64, 1)) * 0.1 if env.action_space.shape else jnp.ones(64, jnp.int32)
    _, _, together = jax.jit(lambda s, a: step_all(env, jax.random.key(1), s, a, params))(
        states, actions
    )
    alone = jax.jit(env.step)
    for i in (0, 17, 63):
        one = jax.tree.map(itemgetter(i), (states, actions, params))
        _, transition = alone(jax.random.key(1), *one)
        np.testing.assert_allclose(
            together.observation[i], transition.observation, rtol=1e-4, atol=1e-5
        )
    assert len(np.unique(np.asarray(together.observation)[:, 2])) > 32


def test_an_own_family_takes_a_few_lines() -> None:
    family = ParameterFamily(Pendulum(), {"mass": Uniform(0.5, 2.0), "gravity": 9.0})
    params = family.draw(np.random.default_rng(0), 5)
    assert np.all(np.asarray(params.gravity) == 9.0)
    assert np.all(np.asarray(params.length) == 1.0)
    assert list(family.describe(params)) == ["mass"]
    np.testing.assert_array_equal(family.describe(params)["mass"], np.asarray(params.mass))


def test_the_same_seed_draws_the_same_tasks() -> None:
    first, again = (double_pendulum_tasks().draw(np.random.default_rng(3), 10) for _ in range(2))
    for field in dataclasses.fields(first):
        np.testing.assert_array_equal(getattr(first, field.name), getattr(again, field.name))


def test_parameters_must_exist_and_have_their_shape() -> None:
    with pytest.raises(ValueError, match=r"must be one of .*'mass'.*, but got 'weight'"):
        ParameterFamily(Pendulum(), {"weight": 1.0})
    with pytest.raises(ValueError, match=r"'gravity' must have entries of shape \(2,\), but got"):
        ParameterFamily(double_pendulum_tasks().env, {"gravity": Either(1.0, 2.0)})
