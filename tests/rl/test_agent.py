import contextlib
import json
from pathlib import Path

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pinfactory.persistence
from pinfactory.core.constraints import Scheduled
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.training import Callback
from pinfactory.persistence import DamagedFileError
from pinfactory.rl import EnvironmentFault, EvalCallback, SpecialistAgent, envs, train_agents

# One iteration is 64 steps.
SMALL = {
    "n_envs": 4,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 2,
    "selector_hidden": (8,),
    "critic_hidden": (8,),
    "capacity": 3,
}


def small(**settings) -> SpecialistAgent:
    return SpecialistAgent("CartPole-v1", **SMALL | {"n_experts": 2} | settings)


def leaves(agent: SpecialistAgent) -> list[np.ndarray]:
    return [np.asarray(a) for a in jax.tree.leaves(eqx.filter(agent.state_, eqx.is_array))]


def assert_same(one: SpecialistAgent, other: SpecialistAgent) -> None:
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def trained() -> SpecialistAgent:
    return small().learn(640)


def test_the_same_seed_gives_the_same_agent_and_another_one_another(
    trained: SpecialistAgent,
) -> None:
    assert_same(trained, small().learn(640))
    assert any((a != b).any() for a, b in zip(leaves(trained), leaves(small(seed=1)), strict=True))


def test_timesteps_are_counted_and_rounded_up_to_whole_updates() -> None:
    agent = small().learn(100)
    assert agent.num_timesteps == 128
    assert agent.learn(64).num_timesteps == 192
    assert [progress.step for progress in agent.history_] == [128, 192]


def test_actions_have_the_form_of_the_environment(trained: SpecialistAgent) -> None:
    action, state = trained.predict(np.zeros(4))
    assert action in (0, 1)
    assert np.shape(action) == ()
    assert state is None
    actions, _ = trained.predict(np.zeros((5, 4)), deterministic=True)
    assert actions.shape == (5,)
    assert len(set(actions.tolist())) == 1


def test_a_held_expert_is_remembered_between_predictions() -> None:
    agent = small(hold=3)
    observation = np.zeros((50, 4))
    _, state = agent.predict(observation)
    experts = [state[0]]
    for _ in range(3):
        _, state = agent.predict(observation, state)
        experts.append(state[0])
    np.testing.assert_array_equal(experts[0], experts[1])
    np.testing.assert_array_equal(experts[0], experts[2])
    assert (experts[2] != experts[3]).any()
    starts = np.arange(50) < 25
    _, again = agent.predict(observation, (experts[0], np.ones(50, np.int32)), starts)
    np.testing.assert_array_equal(again[0][25:], experts[0][25:])
    np.testing.assert_array_equal(again[1], np.where(starts, 1, 2))


def test_an_expert_may_be_held_for_longer_than_an_update() -> None:
    agent = small(hold=1000).learn(256)
    assert all(np.isfinite(progress.info.objective).all() for progress in agent.history_)


def test_a_constant_expert_does_the_same_in_all_states_and_the_committee_does_not() -> None:
    agent = small(expert="constant").learn(640)
    decide = eqx.filter_jit(agent.state_.policy.decide)
    decision = decide(jnp.asarray(np.random.default_rng(0).normal(size=(6, 4)), jnp.float32))
    probs = np.asarray(decision.answers.probs)
    np.testing.assert_array_equal(probs, np.broadcast_to(probs[:1], probs.shape))
    assert np.abs(probs[0, 0] - probs[0, 1]).max() > 0.01
    assert np.ptp(decision.selections[0].probs[:, 0]) > 0.01
    assert agent.information_.experts == pytest.approx(0.0, abs=1e-6)


def test_responsibilities_are_probabilities_of_the_experts_that_may_act(
    trained: SpecialistAgent,
) -> None:
    p = trained.responsibilities(np.random.default_rng(0).normal(size=(6, 4)))
    assert p.shape == (6, 2)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-5)


def test_log_prob_is_that_of_the_actions_it_takes(trained: SpecialistAgent) -> None:
    x = np.array([[0.1, 0.5, -0.05, -0.4]])
    share = np.mean(trained.predict(np.tile(x, (4000, 1)))[0])
    assert np.exp(trained.log_prob(x, [1]))[0] == pytest.approx(share, abs=0.03)
    total = np.exp(trained.log_prob(x, [0])) + np.exp(trained.log_prob(x, [1]))
    assert total[0] == pytest.approx(1.0, rel=1e-5)


def test_information_is_within_its_bounds(trained: SpecialistAgent) -> None:
    information = trained.information_
    assert 0.0 <= information.selector <= 1.0
    assert 0.0 <= information.experts <= 1.0
    assert information.responsibility.shape == (2,)
    assert information.responsibility.sum() == pytest.approx(1.0, rel=1e-5)
    assert 1.0 <= information.effective_experts <= 2.0


def test_evaluation_plays_whole_episodes(trained: SpecialistAgent) -> None:
    played = trained.evaluate(7, seed=3)
    for episodes in played:
        assert episodes.returns.shape == (7,)
        np.testing.assert_array_equal(episodes.returns, episodes.lengths)
        assert episodes.mean == pytest.approx(np.mean(episodes.returns))
        assert episodes.std == pytest.approx(np.std(episodes.returns))
    again = trained.evaluate(7, seed=3)
    np.testing.assert_array_equal(again.stochastic.returns, played.stochastic.returns)
    assert "deterministic" in repr(played)
    assert f"{played.stochastic.mean:.4g}" in repr(played)


def test_episodes_of_training_can_be_cut_short_and_evaluation_plays_whole_ones() -> None:
    agent = SpecialistAgent("Pendulum-v1", 2, max_episode_steps=8, **SMALL).learn(128)
    assert agent.history_[-1].info.episode_length == 8.0
    np.testing.assert_array_equal(agent.evaluate(3).deterministic.lengths, 200)
    longer = SpecialistAgent("Pendulum-v1", 2, max_episode_steps=1000, **SMALL)
    np.testing.assert_array_equal(longer.evaluate(3).deterministic.lengths, 200)


def test_a_saved_agent_acts_and_learns_on_as_before(
    trained: SpecialistAgent, tmp_path: Path
) -> None:
    trained.save(tmp_path / "agent.pin")
    loaded = SpecialistAgent.load(tmp_path / "agent.pin")
    assert_same(trained, loaded)
    assert isinstance(pinfactory.persistence.load(tmp_path / "agent.pin"), SpecialistAgent)
    x = np.random.default_rng(0).normal(size=(9, 4))
    np.testing.assert_array_equal(
        trained.predict(x, deterministic=True)[0], loaded.predict(x, deterministic=True)[0]
    )
    assert loaded.learn(64).num_timesteps == trained.num_timesteps + 64


def test_a_small_file_cannot_ask_for_very_many_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = small()
    meta, state = agent._to_file()
    monkeypatch.setattr(agent, "_to_file", lambda: (meta | {"n_envs": 10**9}, state))
    agent.save(tmp_path / "agent.pin")
    with pytest.raises(DamagedFileError, match="more than the limit allows"):
        SpecialistAgent.load(tmp_path / "agent.pin")


def test_an_agent_of_a_nameless_environment_loads_without_it(tmp_path: Path) -> None:
    agent = SpecialistAgent(envs.Pendulum(), **SMALL, expert_bits=1.0, n_experts=3)
    agent.save(tmp_path / "agent.pin")
    loaded = SpecialistAgent.load(tmp_path / "agent.pin")
    assert loaded.predict(np.zeros(3))[0].shape == (1,)
    with pytest.raises(ValueError, match="must have an environment to learn"):
        loaded.learn(64)
    loaded.set_env(envs.Pendulum(max_steps=50))
    with pytest.raises(ValueError, match="must have observations of shape"):
        loaded.set_env("CartPole-v1")


def test_schedules_survive_saving(tmp_path: Path) -> None:
    small(beta_selector=Scheduled(1.0, 9.0, 100.0, "linear")).save(tmp_path / "agent.pin")
    loaded = SpecialistAgent.load(tmp_path / "agent.pin")
    assert loaded.state_.resources[0].end == 9.0


def test_a_killed_run_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    trained: SpecialistAgent, tmp_path: Path
) -> None:
    path = tmp_path / "run.pin"

    def kill(progress) -> None:
        if progress.step >= 256:
            raise SystemExit

    with pytest.raises(SystemExit):
        small().learn(640, kill, checkpoint=path, report_every=128)
    resumed = small().learn(640, checkpoint=path)
    assert_same(resumed, trained)


def test_a_finished_run_goes_on_if_more_steps_are_asked_for_and_refuses_fewer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run.pin"

    def steady() -> SpecialistAgent:
        return small(final_learning_rate=SpecialistAgent.learning_rate)

    steady().learn(320, checkpoint=path)
    assert_same(steady().learn(640, checkpoint=path), steady().learn(640))
    with pytest.raises(
        pinfactory.persistence.MismatchError,
        match="has taken 10 steps of training, but this run has 5",
    ):
        steady().learn(320, checkpoint=path)


def test_a_checkpoint_of_other_parameters_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "run.pin"

    def agent(gravity: float | None) -> SpecialistAgent:
        params = None if gravity is None else envs.CartPoleParams(gravity=jnp.asarray(gravity))
        return SpecialistAgent(envs.CartPole, **SMALL | {"n_experts": 2}, params=params)

    agent(5.0).learn(64, checkpoint=path)
    assert agent(5.0).learn(64, checkpoint=path).num_timesteps == 64
    for other in (2.0, None):
        with pytest.raises(
            pinfactory.persistence.MismatchError,
            match=r"belongs to params \S+, but this run has params",
        ):
            agent(other).learn(64, checkpoint=path)


def test_a_callback_can_stop_and_sees_environment_steps() -> None:
    seen = []

    class Watch(Callback):
        def chunk(self, progress, run) -> None:
            seen.append((progress.step, progress.total, int(run.step)))

    agent = small().learn(640, [Watch(), lambda p: p.step >= 256], report_every=128)
    assert seen == [(128, 640, 128), (256, 640, 256)]
    assert agent.num_timesteps == 256


def test_logs_are_written_in_environment_steps(tmp_path: Path) -> None:
    small(tensorboard_log=tmp_path).learn(256, report_every=128)
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [128, 256]
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [e.step for e in events.Scalars("episode_return")] == [128, 256]
    assert {"information/0", "information/1", "beta/0", "objective"} <= set(
        events.Tags()["scalars"]
    )


def test_a_progress_bar_counts_environment_steps(capsys: pytest.CaptureFixture[str]) -> None:
    small().learn(128, progress_bar=True)
    assert "128/128" in capsys.readouterr().err


def test_the_best_agent_is_kept(tmp_path: Path) -> None:
    agent = small()
    evaluation = EvalCallback(
        agent, 128, n_eval_episodes=3, best_model_save_path=tmp_path / "best.pin"
    )
    agent.learn(512, evaluation, report_every=64)
    assert [e.timesteps for e in evaluation.history] == [128, 256, 384, 512]
    assert evaluation.best is not None
    assert evaluation.best.mean == max(e.mean for e in evaluation.history)
    best = SpecialistAgent.load(tmp_path / "best.pin")
    first = next(e for e in evaluation.history if e.mean == evaluation.best.mean)
    assert best.num_timesteps == first.timesteps


def test_the_best_agent_is_kept_when_a_killed_run_is_resumed(tmp_path: Path) -> None:
    def learned(name: str, *killed_at: int) -> EvalCallback:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        for step in (*killed_at, None):

            def kill(progress, step=step) -> None:
                if progress.step == step:
                    raise SystemExit

            agent = small()
            evaluation = EvalCallback(
                agent, 128, n_eval_episodes=3, best_model_save_path=folder / "best.pin"
            )
            with contextlib.suppress(SystemExit):
                agent.learn(512, [evaluation, kill], report_every=64, checkpoint=folder / "run.pin")
        return evaluation

    whole, broken = learned("whole"), learned("broken", 192, 384)
    assert [record.timesteps for record in whole.history] == [128, 256, 384, 512]
    assert (broken.history, broken.best) == (whole.history, whole.best)
    best, kept = (SpecialistAgent.load(tmp_path / n / "best.pin") for n in ("whole", "broken"))
    assert_same(kept, best)
    for damage in ("[[64", '[["a"]]', "[[64, 1.0]]", "3", "[[NaN, 1, 1, 1, 1]]"):
        (tmp_path / "broken" / "best.pin.json").write_text(damage)
        with pytest.raises(ValueError, match=r"best\.pin\.json must hold what an EvalCallback"):
            learned("broken")


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"eval_freq": -1}, "eval_freq"),
        ({"n_eval_episodes": 0}, "n_eval_episodes"),
        ({"stop_at": "high"}, "stop_at"),
        ({"agent": None}, "agent"),
    ],
)
def test_an_evaluation_that_cannot_be_is_refused_before_training(wrong: dict, name: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"`{name}` must be"):
        EvalCallback(**{"agent": small()} | wrong)


def test_training_stops_at_a_wanted_return() -> None:
    agent = small()
    agent.learn(6400, EvalCallback(agent, 64, n_eval_episodes=2, stop_at=1.0), report_every=64)
    assert agent.num_timesteps == 64


def test_replicas_differ_in_what_the_grid_says_and_equal_single_trainings(
    trained: SpecialistAgent,
) -> None:
    settings = {k: v for k, v in SMALL.items() if k != "capacity"}
    agents = train_agents(
        "CartPole-v1",
        640,
        seeds=(0, 1),
        grid=({"n_experts": 2}, {"n_experts": 3, "beta_expert": 7.0}),
        **settings,
    )
    assert [(a.seed, a.n_experts) for a in agents] == [(0, 2), (1, 2), (0, 3), (1, 3)]
    assert_same(agents[0], trained)
    assert agents[3].state_.resources[1].beta == 7.0


@pytest.mark.slow
def test_agents_of_other_processes_come_back_as_if_they_had_learned_here() -> None:
    settings = SMALL | {"n_experts": 2}
    agents = train_agents(envs.CartPole(), 640, seeds=(0, 1), jobs=2, **settings)
    here = SpecialistAgent(envs.CartPole(), seed=1, **settings).learn(640)
    assert_same(agents[1], here)
    assert len(agents[1].history_) == len(here.history_)
    assert_same(agents[1].learn(64), here.learn(64))
    with pytest.raises(RuntimeError, match=r"(?s)1 of 2 failed.*'n_steps': 0.*`n_steps` must be"):
        train_agents(envs.CartPole(), 64, grid=({}, {"n_steps": 0}), jobs=1, **settings)


class Broken(envs.CartPole):
    """Returns NaN once an episode is longer than `max_angle` says."""

    def step(self, key, state, action, params):
        state, transition = super().step(key, state, action, params)
        reward = jnp.where(state.steps > 8, jnp.nan, transition.reward)
        return state, transition._replace(reward=reward)


def test_nan_from_an_environment_is_named_and_what_was_learned_is_kept() -> None:
    sound = small().learn(64)
    sound.set_env(Broken())
    before = leaves(sound)
    with pytest.raises(EnvironmentFault, match="Broken returned a reward that is not finite"):
        sound.learn(640)
    assert all(np.isfinite(leaf).all() for leaf in leaves(sound) if leaf.dtype.kind == "f")
    assert len(before) == len(leaves(sound))
    assert sound.predict(np.zeros(4))[0] in (0, 1)
    sound.set_env("CartPole-v1")
    sound.learn(64)


def test_a_learning_rate_that_breaks_learning_is_not_blamed_on_the_environment() -> None:
    agent = SpecialistAgent(envs.Pendulum(), **SMALL | {"n_experts": 2}, learning_rate=1e30)
    with pytest.raises(NonFiniteError):
        agent.learn(640)
    assert np.isfinite(agent.predict(np.zeros(3))[0]).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_experts": 0}, "`n_experts` must be an integer of at least 1"),
        ({"hold": 0}, "`hold` must be"),
        ({"expert": "quadratic"}, "`expert` must be one of 'constant', 'linear', 'mlp'"),
        ({"critic": "own"}, "`critic` must be one of"),
        ({"update": "trpo"}, "`update` must be one of"),
        ({"gamma": 1.0}, "`gamma` must be a number"),
        ({"beta_expert": -1.0}, "`beta_expert` must be"),
        ({"selector_bits": 3.0}, "must be at most log2"),
        ({"capacity": 1}, "`capacity` must be"),
        ({"max_episode_steps": 0}, "`max_episode_steps` must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)


def test_observations_of_another_shape_or_not_finite_are_refused(
    trained: SpecialistAgent,
) -> None:
    with pytest.raises(ValueError, match=r"must have shape \(4,\)"):
        trained.predict(np.zeros(5))
    with pytest.raises(ValueError, match="must be finite"):
        trained.predict([0.0, np.nan, 0.0, 0.0])


@pytest.mark.usefixtures("types_unchecked")
def test_a_number_of_episodes_that_is_none_is_refused(trained: SpecialistAgent) -> None:
    with pytest.raises(ValueError, match="`n_episodes` must be an integer of at least 1"):
        trained.evaluate(None)
    with pytest.raises(ValueError, match="`seed` must be an integer of at least 0"):
        trained.evaluate(2, seed=-1)


def test_parameters_can_differ_between_environments() -> None:
    params = envs.CartPoleParams(gravity=jnp.array([9.8, 5.0, 2.0, 20.0]))
    agent = SpecialistAgent(envs.CartPole, **SMALL | {"n_experts": 2}, params=params)
    agent.learn(64)
    wrong = envs.CartPoleParams(gravity=jnp.array([9.8, 5.0]))
    with pytest.raises(ValueError, match="one entry for each of the 4 environments"):
        SpecialistAgent(envs.CartPole, **SMALL | {"n_experts": 2}, params=wrong)
    with pytest.raises(ValueError, match=r"`params` must be CartPoleParams.* but got 0"):
        SpecialistAgent(envs.CartPole, **SMALL | {"n_experts": 2}, params=0)


def test_an_agent_of_an_environment_that_is_not_registered_loads_with_another(
    tmp_path: Path,
) -> None:
    gymnasium.register("test/Other-v0", envs.GymnasiumEnv, kwargs={"env": envs.CartPole()})
    try:
        agent = SpecialistAgent("test/Other-v0", **SMALL | {"n_experts": 2}).learn(64)
    finally:
        del gymnasium.registry["test/Other-v0"]
    agent.save(tmp_path / "agent.pin")
    loaded = SpecialistAgent.load(tmp_path / "agent.pin", env="CartPole-v1")
    assert_same(loaded, agent)
    assert loaded.learn(64).num_timesteps == 128
    # Without an environment it acts, and says what it needs when it has to learn.
    nameless = SpecialistAgent.load(tmp_path / "agent.pin")
    assert nameless.predict(np.zeros(4))[0] in (0, 1)
    with pytest.raises(ValueError, match="of a registered environment"):
        nameless.learn(64)


def test_callbacks_are_one_or_several_or_none() -> None:
    seen = []

    def note(progress) -> None:
        seen.append(progress.step)

    class Note(Callback):
        def chunk(self, progress, run) -> None:
            note(progress)

    for callbacks, times in ((None, 0), (note, 1), (Note(), 1), ((note, Note(), None), 2), ([], 0)):
        seen.clear()
        small().learn(64, callbacks)
        assert seen == [64] * times


def test_settings_are_shown_and_changed_until_it_learns() -> None:
    agent = SpecialistAgent("CartPole-v1", 2, beta_expert=3.0)
    assert repr(agent) == "SpecialistAgent(beta_expert=3.0, env='CartPole-v1', n_experts=2)"
    assert agent.get_params()["learning_rate"] == 2e-3
    same = small(seed=4).set_params(seed=0)
    assert_same(same, small())
    assert_same(same.learn(64), small().learn(64))
    with pytest.raises(ValueError, match="must be set before it learns"):
        same.set_params(seed=1)
    assert_same(clone(same), small())


def test_returns_before_the_first_whole_episode_are_missing(tmp_path: Path) -> None:
    # Episodes last 40 steps; first ones begin somewhere within, and have better returns for that.
    agent = SpecialistAgent(
        "Pendulum-v1", 2, **SMALL, tensorboard_log=tmp_path, max_episode_steps=40
    )
    agent.learn(512, report_every=64)
    returns = [float(progress.info.episode_return[0]) for progress in agent.history_]
    lengths = [float(progress.info.episode_length[0]) for progress in agent.history_]
    first = int(np.flatnonzero(np.isfinite(returns))[0])
    taken = np.random.default_rng(agent.seed).integers(0, 40, 4, np.int32)
    assert first == (np.where(taken == 0, 40, 80 - taken).min() - 1) // 16
    assert np.isnan(returns[:first]).all()
    assert max(returns[first:]) < -100.0
    np.testing.assert_allclose(lengths[first:], 40.0)
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [row["episode_return"] == [None] for row in rows] == [i < first for i in range(8)]
    assert all("finished" not in row for row in rows)
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("episode_return")
    assert [event.step for event in events] == [64 * (i + 1) for i in range(first, 8)]


def test_many_agents_are_logged_kept_and_evaluated_as_one_is(tmp_path: Path) -> None:
    evaluations = []

    def evaluate(agent: SpecialistAgent) -> EvalCallback:
        evaluations.append(EvalCallback(agent, 64, n_eval_episodes=2))
        return evaluations[-1]

    steps = []
    agents = train_agents(
        "CartPole-v1",
        128,
        seeds=(0, 1),
        callbacks=lambda progress: steps.append(progress.step),
        make_callbacks=evaluate,
        tensorboard_log=tmp_path / "logs",
        checkpoint=tmp_path / "runs",
        report_every=64,
        **SMALL | {"n_experts": 2},
    )
    assert steps == [64, 128, 64, 128]
    assert [len(evaluation.history) for evaluation in evaluations] == [2, 2]
    for number, agent in enumerate(agents):
        assert (tmp_path / "logs" / f"agent_{number}" / "progress.jsonl").exists()
        resumed = small(seed=number).learn(
            128, checkpoint=tmp_path / "runs" / f"agent_{number}.pin"
        )
        assert_same(resumed, agent)


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"jobs": -1}, "`jobs` must be an integer of at least 1"),
        ({"grid": {"n_experts": 2}}, "`grid` must be a sequence of mappings"),
        ({"grid": None}, "`grid` must be a sequence of mappings"),
        ({"grid": ["n_experts"]}, "`grid` must be a sequence of mappings"),
        ({"seeds": 3}, "`seeds` must be a sequence of seeds"),
        ({"seeds": "01"}, "`seeds` must be a sequence of seeds"),
    ],
)
def test_many_agents_of_a_wrong_kind_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        train_agents("CartPole-v1", 64, **change)


def test_held_experts_are_measured_where_they_were_chosen_and_where_they_act() -> None:
    agent = small(hold=5).learn(640)
    state, information = agent.state_, agent.information_
    visited = state.visited
    probs = agent.responsibilities(visited.observation)
    chosen = probs[np.asarray(visited.selected)].astype(float)
    # About one choice in five steps; an episode may begin in between.
    assert 0.2 <= len(chosen) / len(probs) <= 0.5
    marginal = chosen.mean(axis=0)
    bits = np.mean(np.sum(chosen * np.log2(chosen / marginal), axis=1))
    assert information.selector == pytest.approx(bits, abs=1e-4)
    acted = np.bincount(np.asarray(visited.expert), minlength=2) / len(probs)
    np.testing.assert_allclose(information.responsibility, acted, atol=1e-6)
    assert information.experts == pytest.approx(np.sum(acted * information.per_expert), abs=1e-6)
    answers = np.asarray(state.policy.decide(visited.observation).answers.probs, float)
    expected = []
    for m in range(2):
        own = answers[np.asarray(visited.expert) == m, m]
        expected.append(np.mean(np.sum(own * np.log2(own / own.mean(axis=0)), axis=1)))
    np.testing.assert_allclose(information.per_expert, expected, atol=1e-4)


def test_an_agent_that_has_not_learned_has_no_information() -> None:
    assert not hasattr(small(), "information_")
