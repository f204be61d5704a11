"""The agent: what it finds out about a task, and all that one can do with it."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pinfactory
from pinfactory.core.training import Callback
from pinfactory.persistence import MismatchError, NotStorableError
from pinfactory.rl.meta import (
    AdaptedAgent,
    MetaSpecialistAgent,
    ParameterFamily,
    TaskPartitionDisplay,
    Uniform,
    pendulum_tasks,
)
from pinfactory.rl.meta.agent import checked_family

SMALL = {
    "n_tasks": 32,
    "n_steps": 30,
    "selector_units": 32,
    "expert_hidden": (32, 32),
    "critic_hidden": (32, 32),
    "gamma": 0.9,
    "learning_rate": 3e-3,
    "selector_learning_rate": 3e-3,
    "capacity": 4,
    "seed": 1,
}
NARROW = {"selector_units": 8, "expert_hidden": (8, 8), "critic_hidden": (8, 8)}
# One program for all tests that need no training to speak of: compiling it takes seconds.
SHORT = {"n_tasks": 4, "n_steps": 8, **NARROW}


@pytest.fixture(scope="module")
def trained(points: ParameterFamily) -> MetaSpecialistAgent:
    agent = MetaSpecialistAgent(points, 2, **SMALL)
    return agent.learn(100)


def test_the_sign_of_a_motor_is_identified_within_two_transitions(
    trained: MetaSpecialistAgent,
) -> None:
    information = trained.information_
    assert information.about["sign"] > 0.9
    assert information.selector > 0.9
    assert information.effective_experts > 1.8
    assert information.about["gain"] < 0.1


def test_experts_come_close_to_the_best_controller(
    trained: MetaSpecialistAgent, best: float
) -> None:
    # The probe alone, two steps at a mean squared distance of a third, costs about 0.7.
    assert trained.evaluate(n_tasks=64, seed=0).deterministic.mean > best - 0.5


def test_one_expert_cannot_serve_both_signs(points: ParameterFamily, best: float) -> None:
    # Whatever a memoryless policy does, it is right for one sign and as wrong for the other; doing
    # nothing costs 20/3.
    agent = MetaSpecialistAgent(points, 1, **SMALL)
    assert agent.learn(100).evaluate(n_tasks=64, seed=0).deterministic.mean < best - 2.0


def test_another_unit_of_reward_changes_no_value_of_information(
    trained: MetaSpecialistAgent,
) -> None:
    state = trained.state_
    other = state.rescaled(jnp.asarray(0.25))
    x, tau = jnp.array([[0.3], [-0.8]]), state.replay.transitions[:5]
    values = [s.critics(x) for s in (state, other)]
    # The selector's critic has two numbers for every expert.
    values_of_tasks = [jax.vmap(s.selector_critic)(tau).reshape(5, -1, 2) for s in (state, other)]
    replays = [s.replay.free_energy for s in (state, other)]
    for before, after in (values, values_of_tasks, replays):
        assert np.abs(before).min(axis=tuple(range(before.ndim - 1))).all()
        np.testing.assert_allclose(after[..., 0], 0.25 * before[..., 0], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(after[..., 1], before[..., 1])


def test_an_adapted_agent_acts_as_its_task_needs(trained: MetaSpecialistAgent) -> None:
    env = trained.family.env
    for sign in (1.0, -1.0):
        params = dataclasses.replace(env.default_params(), sign=sign)
        adapted = trained.adapt(env, params, seed=3)
        assert isinstance(adapted, AdaptedAgent)
        action, _ = adapted.predict([0.8], deterministic=True)
        assert action.shape == (1,)
        assert sign * action[0] < -0.5
        batch, _ = adapted.predict([[0.8], [-0.8]])
        assert batch.shape == (2, 1)


@pytest.mark.parametrize("observation", [[0.1, 0.2], [[[0.1]]], [np.nan], [[0.1], [np.inf]], 0.1])
def test_an_adapted_agent_refuses_what_is_no_observation(
    trained: MetaSpecialistAgent, observation: object
) -> None:
    with pytest.raises(ValueError, match="An observation must"):
        trained.adapt(trained.family.env).predict(observation)


def test_a_probe_that_is_not_finite_is_told(trained: MetaSpecialistAgent) -> None:
    env = trained.family.env
    broken = dataclasses.replace(env.default_params(), gain=np.nan)
    with pytest.raises(FloatingPointError, match="the probe met"):
        trained.adapt(env, broken)
    rows = dataclasses.replace(broken, sign=np.ones(2), gain=np.array([0.3, np.nan]))
    with pytest.raises(FloatingPointError, match="the probe met"):
        trained.responsibilities(rows)


def test_evaluations_describe_every_task(trained: MetaSpecialistAgent) -> None:
    played = trained.evaluate(n_tasks=64, seed=5)
    for episodes in (played.deterministic, played.stochastic):
        assert episodes.returns.shape == episodes.lengths.shape == played.experts.shape == (64,)
        assert set(episodes.lengths.tolist()) == {20}
    assert not np.array_equal(played.deterministic.returns, played.stochastic.returns)
    assert sorted(played.tasks) == ["gain", "sign"]
    assert trained.num_timesteps == 100 * 2 * 32 * (30 + 2)
    np.testing.assert_allclose(played.responsibilities.sum(axis=1), 1.0, rtol=1e-5)
    again = trained.evaluate(n_tasks=64, seed=5)
    np.testing.assert_array_equal(again.stochastic.returns, played.stochastic.returns)


def test_updates_on_new_tasks_leave_the_agent_as_it_is(
    trained: MetaSpecialistAgent, points: ParameterFamily
) -> None:
    weaker = ParameterFamily(points.env, {**points.parameters, "gain": Uniform(0.1, 0.15)})
    before = jax.tree.leaves(trained.state_.policy.hierarchy.experts)[0]
    changed = trained.evaluate(weaker, n_tasks=64, seed=0, updates=5)
    np.testing.assert_array_equal(
        jax.tree.leaves(trained.state_.policy.hierarchy.experts)[0], before
    )
    unchanged = trained.evaluate(weaker, n_tasks=64, seed=0)
    assert not np.array_equal(changed.deterministic.returns, unchanged.deterministic.returns)


def test_a_saved_agent_goes_on_as_it_was(trained: MetaSpecialistAgent, tmp_path: Path) -> None:
    # A family of an environment of this library is kept in the file; another one is not.
    with pytest.raises(NotStorableError, match="must be a ParameterFamily of one of"):
        trained.save(tmp_path / "agent.pin")
    agent = MetaSpecialistAgent(pendulum_tasks(), 2, **SHORT)
    agent.save(tmp_path / "agent.pin")
    loaded = pinfactory.load(tmp_path / "agent.pin")
    assert isinstance(loaded, MetaSpecialistAgent)
    assert loaded.family == agent.family
    first, second = (a.evaluate(n_tasks=4, seed=1) for a in (agent, loaded))
    np.testing.assert_array_equal(first.stochastic.returns, second.stochastic.returns)


def test_a_gymnasium_environment_is_probed_like_ours() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    agent = MetaSpecialistAgent(pendulum_tasks(), 2, **SHORT)
    env = gymnasium.make("Pendulum-v1")
    adapted = agent.adapt(env, seed=2)
    action, _ = adapted.predict(env.reset(seed=0)[0])
    assert env.action_space.contains(action)
    np.testing.assert_allclose(adapted.responsibilities_.sum(), 1.0, rtol=1e-5)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def chunk(self, progress, run) -> bool:
        return progress.step >= self.step


def test_a_resumed_training_ends_as_one_that_never_stopped(
    trained: MetaSpecialistAgent, points: ParameterFamily, tmp_path: Path
) -> None:
    def agent() -> MetaSpecialistAgent:
        return MetaSpecialistAgent(points, 2, **SMALL)

    file = tmp_path / "run.pin"
    agent().learn(100, StopAt(40), checkpoint=file)
    resumed = agent().learn(100, checkpoint=file)
    for one, other in zip(
        jax.tree.leaves(trained.state_), jax.tree.leaves(resumed.state_), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert int(agent().learn(120, checkpoint=file).state_.iteration) == 120
    with pytest.raises(MismatchError, match="has taken 120 steps of training, but this run has 40"):
        agent().learn(40, checkpoint=file)


def test_a_checkpoint_of_other_tasks_is_refused_by_name(
    points: ParameterFamily, tmp_path: Path
) -> None:
    def agent(gain: float) -> MetaSpecialistAgent:
        parameters = {**points.parameters, "gain": Uniform(0.25, gain)}
        return MetaSpecialistAgent(ParameterFamily(points.env, parameters), 2, **SHORT)

    file = tmp_path / "run.pin"
    agent(0.35).learn(1, report_every=1, checkpoint=file)
    with pytest.raises(MismatchError, match=r"belongs to tasks \S+, but this run has tasks"):
        agent(0.5).learn(1, report_every=1, checkpoint=file)


def test_in_the_end_most_slots_get_a_new_task_in_every_iteration(points: ParameterFamily) -> None:
    # Episodes last 20 steps: none ends by itself within the first iteration.
    for iterations, replaced in ((8, 0), (1, 3)):
        agent = MetaSpecialistAgent(points, 2, **SHORT)
        agent.learn(iterations, StopAt(1), report_every=1)
        assert agent._run is not None
        over = agent._run.state[1].over[0]
        assert over.tolist() == [False] * (4 - replaced) + [True] * replaced


def test_the_partition_shows_who_takes_which_sign(trained: MetaSpecialistAgent) -> None:
    display = TaskPartitionDisplay.from_agent(trained, parameters=["sign"], n_tasks=200)
    (ax,) = display.axes_
    heights = np.array([bar.get_height() for bar in ax.patches]).reshape(2, 2)
    np.testing.assert_allclose(heights.sum(axis=0), 1.0, rtol=1e-5)
    assert np.abs(heights[0] - heights[1]).min() > 0.8
    with pytest.raises(ValueError, match=r"must be one of .*, but got 'colour'"):
        TaskPartitionDisplay.from_agent(trained, parameters=["colour"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"probe": "pray"}, "`probe` must be one of 'shake', 'noise', 'prior', 'expert'"),
        ({"n_experts": 0}, "`n_experts` must be an integer of at least 1"),
        ({"capacity": 1}, "`capacity` must be an integer of at least 4"),
        ({"probe_size": 0.0}, "`probe_size` must be a number above 0"),
        ({"selector_cell": "lstm"}, "`cell` must be 'indrnn' or 'gru'"),
        ({"n_initial_experts": 0}, "`n_initial_experts` must be an integer of at least 1"),
        ({"expert": "cubic"}, "`expert` must be one of 'linear', 'mlp'"),
        ({"expert_hidden": (0,)}, "`expert_hidden` must be an integer of at least 1"),
        ({"selector_bits": 2.5}, "`selector_bits` must be at most log2"),
    ],
)
def test_wrong_settings_are_refused(
    points: ParameterFamily, settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MetaSpecialistAgent(points, **settings)


def test_what_is_no_environment_and_no_task_is_refused(points: ParameterFamily) -> None:
    agent = MetaSpecialistAgent(points, 2, **SMALL)
    for nothing in (None, 0, "CartPole-v1"):
        with pytest.raises(ValueError, match="`env` must be an environment"):
            agent.adapt(nothing)
    for nothing in (None, 0, (), points.env.default_params()):
        with pytest.raises(ValueError, match="`tasks` must be parameters with a leading axis"):
            agent.responsibilities(nothing)


def test_what_is_no_family_of_tasks_is_refused(points: ParameterFamily) -> None:
    assert checked_family("family", points) is points
    with pytest.raises(ValueError, match=r"`family` must be .*, but got 'CartPole"):
        checked_family("family", "CartPole-v1")


def test_experts_may_be_linear(points: ParameterFamily) -> None:
    linear = MetaSpecialistAgent(points, 2, "linear", **SHORT)
    (layer,) = linear.state_.policy.hierarchy.experts.network.layers
    assert layer.weight.shape == (2, 2, 1)
    empty = {**NARROW, "expert_hidden": (), "critic_hidden": ()}
    agent = MetaSpecialistAgent(points, 2, **SHORT | empty)
    assert np.isfinite(agent.evaluate(n_tasks=4).deterministic.mean)


def test_information_is_measured_once_after_learning(
    trained: MetaSpecialistAgent, points: ParameterFamily
) -> None:
    information = trained.information_
    assert trained.information_ is information
    assert information.experts == pytest.approx(
        np.sum(information.responsibility * information.per_expert)
    )
    assert trained.effective_experts_ == information.effective_experts
    fresh = MetaSpecialistAgent(points, 2, **SHORT)
    assert not hasattr(fresh, "information_")
    first = fresh.learn(1, report_every=1).information_
    assert fresh.learn(1, report_every=1).information_ is not first


def test_returns_before_the_first_finished_episode_are_missing(points: ParameterFamily) -> None:
    # Episodes last 20 steps, two of them the probe's: the first ones end in iteration three.
    agent = MetaSpecialistAgent(points, 2, **SHORT)
    agent.learn(4, None, report_every=1)
    missing = [bool(np.isnan(report.info.episode_return[0])) for report in agent.history_]
    assert missing == [True, True, False, False]


def test_settings_are_shown(points: ParameterFamily) -> None:
    agent = MetaSpecialistAgent(points, 3, gamma=0.5)
    shown = repr(agent)
    assert shown.startswith("MetaSpecialistAgent(family=ParameterFamily(env=Point(")
    assert shown.endswith("gamma=0.5, n_experts=3)")
    assert agent.get_params()["growth_fraction"] == 0.8


@pytest.mark.slow
@pytest.mark.optimised
def test_a_budget_of_the_selector_is_met(points: ParameterFamily) -> None:
    agent = MetaSpecialistAgent(points, 2, selector_bits=0.5, **SMALL).learn(300)
    assert agent.information_.selector == pytest.approx(0.5, rel=0.05)
