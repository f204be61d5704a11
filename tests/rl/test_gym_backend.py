from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pinfactory.rl import EnvironmentFault, SpecialistAgent
from pinfactory.rl.gym_backend import HostRollout

SMALL = {
    "n_experts": 2,
    "n_envs": 4,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 2,
    "selector_hidden": (8,),
    "critic_hidden": (8,),
}


class Countdown(gymnasium.Env):
    """Ends after `length` steps; the observation counts, and any action is as good as another."""

    def __init__(self, action_space=None, length: int = 5, fault=None) -> None:
        self.observation_space = spaces.Box(0.0, 100.0, (2,), np.float32)
        self.action_space = action_space or spaces.Discrete(3)
        self.length, self.fault = length, fault
        self.taken: list = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert action in self.action_space
        self.taken.append(action)
        self.steps += 1
        reward = 1.0
        if self.fault == "raise" and len(self.taken) > 40:
            raise RuntimeError("the motor is on fire")
        if self.fault == "reward" and len(self.taken) > 40:
            reward = np.inf
        over = self.steps >= self.length
        return self._observe(), reward, over, False, {}

    def _observe(self):
        broken = self.fault == "observation" and len(self.taken) > 40
        return np.array([np.nan if broken else self.steps, 1.0], np.float32)


def vector(n: int, mode: AutoresetMode, **settings) -> SyncVectorEnv:
    return SyncVectorEnv([partial(Countdown, **settings)] * n, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_either_way_of_resetting_gives_the_last_observation_and_whole_episodes(mode) -> None:
    rollout = HostRollout(vector(2, mode, length=3))
    rollout.start([0])
    starts, ends = [], []
    for _ in range(12):
        starts += rollout.observation[rollout.starts, 0].tolist()
        step = rollout.advance(np.zeros(2, int))
        real = step.weight > 0
        ends += step.next_observation[step.done & real, 0].tolist()
        assert not (step.done & ~real).any()
    assert set(starts) == {0.0}
    assert set(ends) == {3.0}
    assert len(ends) >= 6


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_a_vector_environment_is_learned_in_and_evaluated(mode) -> None:
    agent = SpecialistAgent(vector(4, mode), **SMALL)
    agent.learn(128)
    assert agent.num_timesteps == 128
    for episodes in agent.evaluate(6):
        np.testing.assert_array_equal(episodes.returns, np.full(6, 5.0))
        np.testing.assert_array_equal(episodes.lengths, np.full(6, 5))
    agent.learn(64)
    assert agent.history_[-1].info.episode_return == pytest.approx(5.0)


def test_an_environment_that_does_not_reset_by_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="must reset by itself"):
        SpecialistAgent(vector(2, AutoresetMode.DISABLED), **SMALL)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=2),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiBinary(3),
        spaces.Box(-3.0, 1.0, (2,), np.float32),
        spaces.Box(-np.inf, np.inf, (1, 2), np.float32),
    ],
)
def test_every_kind_of_action_is_taken_as_the_space_wants_it(space) -> None:
    env = Countdown(space)
    agent = SpecialistAgent(env, **SMALL | {"n_steps": 32})
    agent.learn(64)
    assert len(env.taken) == 64
    action, _ = agent.predict(np.array([1.0, 1.0]), deterministic=True)
    assert action in space
    assert np.isfinite(agent.log_prob(np.ones((1, 2)), np.asarray(action)[None])).all()


def test_an_id_or_a_class_makes_as_many_environments_as_wanted() -> None:
    agent = SpecialistAgent("MountainCarContinuous-v0", **SMALL)
    agent.learn(64)
    assert agent.predict(np.zeros(2))[0].shape == (1,)
    assert SpecialistAgent(Countdown, **SMALL).learn(64).num_timesteps == 64


def test_episodes_of_training_can_be_cut_short_where_environments_are_made() -> None:
    agent = SpecialistAgent(partial(Countdown, length=50), max_episode_steps=4, **SMALL).learn(64)
    assert agent.history_[-1].info.episode_length == 4.0
    np.testing.assert_array_equal(agent.evaluate(3).stochastic.lengths, 50)
    with pytest.raises(ValueError, match="`max_episode_steps` must be None"):
        SpecialistAgent(Countdown(), max_episode_steps=4, **SMALL)


def test_the_same_seed_gives_the_same_agent() -> None:
    one, other = (SpecialistAgent(Countdown, **SMALL).learn(128) for _ in range(2))
    x = np.random.default_rng(0).uniform(0, 5, (20, 2))
    np.testing.assert_array_equal(one.responsibilities(x), other.responsibilities(x))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "raised RuntimeError in step: the motor is on fire"),
        ("reward", "returned the reward inf"),
        ("observation", "returned nan as number 0"),
    ],
)
def test_a_faulty_environment_is_named_and_what_was_learned_is_kept(fault, message) -> None:
    agent = SpecialistAgent(Countdown(fault=fault), **SMALL)
    with pytest.raises(EnvironmentFault, match=message):
        agent.learn(640, report_every=16)
    assert agent.num_timesteps == 32
    assert agent.predict(np.zeros(2))[0] in (0, 1, 2)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), "action space must be"),
        (spaces.Box(0, 5, (1,), np.int64), "action space must be"),
        (spaces.Box(0.0, np.inf, (1,), np.float32), "bounded on both sides"),
    ],
)
def test_unsupported_actions_are_refused(space, message) -> None:
    with pytest.raises(ValueError, match=message):
        SpecialistAgent(Countdown(space), **SMALL)


def test_unsupported_observations_and_environments_are_refused() -> None:
    env = Countdown()
    env.observation_space = spaces.Discrete(4)
    with pytest.raises(ValueError, match="observation space must be a Box"):
        SpecialistAgent(env, **SMALL)
    with pytest.raises(ValueError, match="`env` must be"):
        SpecialistAgent(3.0, **SMALL)
    with pytest.raises(ValueError, match="but got 'NoSuchThing-v0': "):
        SpecialistAgent("NoSuchThing-v0", **SMALL)
    with pytest.raises(ValueError, match="`params` must be None"):
        SpecialistAgent(Countdown, **SMALL, params=3)


def test_an_agent_can_move_to_another_number_of_environments() -> None:
    agent = SpecialistAgent(Countdown, **SMALL).learn(64)
    agent.set_env(Countdown())
    assert agent.learn(32).num_timesteps == 96
    assert agent.evaluate(2).deterministic.returns.tolist() == [5.0, 5.0]


class Interrupting(Countdown):
    """Presses Ctrl-C at a step."""

    at = 0

    def step(self, action):
        if len(self.taken) == self.at:
            raise KeyboardInterrupt
        return super().step(action)


def test_ctrl_c_keeps_what_was_learned() -> None:
    env = Interrupting()
    env.at = 40
    seen = []
    agent = SpecialistAgent(env, **SMALL)
    with (
        pytest.warns(UserWarning, match="interrupted at step 2; .* is kept"),
        pytest.raises(KeyboardInterrupt),
    ):
        agent.learn(640, lambda progress: seen.append(progress.step), report_every=16)
    assert agent.num_timesteps == 32
    assert seen == [16, 32]
    assert agent.predict(np.zeros(2))[0] in (0, 1, 2)


def test_ctrl_c_before_anything_was_learned_reaches_the_caller() -> None:
    agent = SpecialistAgent(Interrupting(), **SMALL)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(640)
    assert agent.num_timesteps == 0


def test_reports_are_means_over_the_updates_between_them() -> None:
    each, every = [], []
    SpecialistAgent(Countdown, **SMALL).learn(256, each.append, report_every=64)
    SpecialistAgent(Countdown, **SMALL).learn(256, every.append, report_every=128)
    assert [progress.step for progress in each] == [64, 128, 192, 256]
    assert [progress.step for progress in every] == [128, 256]
    for number, report in enumerate(every):
        pair = [float(p.info.objective[0]) for p in each[2 * number : 2 * number + 2]]
        assert float(report.info.objective[0]) == pytest.approx(np.mean(pair), rel=1e-5)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_trained_policy_scores_the_same_in_mujoco() -> None:
    agent = SpecialistAgent(
        "InvertedDoublePendulum-v5",
        5,
        n_envs=16,
        batch_size=256,
        n_epochs=10,
        learning_rate=3e-3,
    ).learn(80_000)
    ours = agent.evaluate(20).deterministic.returns
    agent.set_env(partial(gymnasium.make, "InvertedDoublePendulum-v5"))
    theirs = agent.evaluate(20).deterministic.returns
    assert np.median(ours) > 9300.0
    assert np.median(theirs) == pytest.approx(np.median(ours), abs=5.0)
