"""Agents that begin with few experts, which are split while they learn."""

from functools import cache
from pathlib import Path

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory.core import splitting
from pinfactory.core.splitting import n_wanted, plan_splits
from pinfactory.core.training import Callback
from pinfactory.rl import SpecialistAgent, growth, train_agents
from pinfactory.rl.growth import split_experts
from pinfactory.rl.state import AgentState

# One iteration is 64 steps, `learn(1280)` are 20.
SMALL = {
    "n_envs": 4,
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 2,
    "selector_hidden": (8,),
    "critic_hidden": (8,),
    "n_experts": 5,
    "capacity": 5,
    "n_initial_experts": 2,
    "growth_fraction": 0.5,
}


def small(env="CartPole-v1", **settings) -> SpecialistAgent:
    return SpecialistAgent(env, **SMALL | settings)


def assert_same(one: SpecialistAgent, other: SpecialistAgent) -> None:
    states = (jax.tree.leaves(eqx.filter(a.state_, eqx.is_array)) for a in (one, other))
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)


class Counts(Callback):
    """Writes down how many experts there are."""

    def __init__(self, agent: SpecialistAgent) -> None:
        self.agent = agent
        self.counts: list[int] = []

    def chunk(self, progress, run) -> None:
        self.counts.append(int(self.agent.state_.policy.hierarchy.available.sum()))


def learned_with_counts(agent: SpecialistAgent, **training) -> list[int]:
    counts = Counts(agent)
    agent.learn(1280, counts, report_every=64, **training)
    return counts.counts


@cache
def before_split(**settings) -> AgentState:
    """Return a state that is to be split after its next iteration."""
    return stopped(small(**settings)).state_


def stopped(agent: SpecialistAgent) -> SpecialistAgent:
    """Let an agent learn for 9 of 20 iterations."""
    return agent.learn(1280, lambda progress: progress.step >= 64 * 9, report_every=64)


def split(old: AgentState) -> AgentState:
    def compiled(state: AgentState) -> AgentState:  # anew, with the noise that there is now
        state = eqx.tree_at(lambda s: s.iteration, state, jnp.asarray(10, jnp.int32))
        visited = state.visited
        x = state.policy.observations(visited.observation)
        return split_experts(jax.random.key(0), state, x, visited.expert, jnp.ones(len(x)))

    return eqx.filter_jit(compiled)(old)


def mixture(state: AgentState) -> np.ndarray:
    """Return p(a|x) = Σ p(m|x) p(a|x,m) of discrete actions in the states last visited."""
    decision = eqx.filter_jit(state.policy.decide)(state.visited.observation)
    return np.einsum("nm,nma->na", decision.selections[0].probs, decision.answers.probs)


def test_experts_double_from_the_growth_fraction_on_until_there_are_enough() -> None:
    assert learned_with_counts(small()) == [2] * 9 + [4] * 2 + [5] * 9
    assert learned_with_counts(small(n_initial_experts=5)) == [5] * 20
    assert learned_with_counts(small(n_experts=1)) == [1] * 20  # no more than there are in the end


def test_what_has_grown_stays_in_a_second_training() -> None:
    agent = small().learn(1280)
    assert learned_with_counts(agent) == [5] * 20


@pytest.mark.parametrize("interval", [0.1, 0.05, 1 / 3])
def test_all_experts_are_split_whenever_an_interval_is_over(interval: float) -> None:
    rest = tuple(map(jnp.asarray, (interval, 3.0, 20.0)))
    after = (-1, 0, 0.9, 1, 1.9, 2, 3, 4)
    found = [int(n_wanted(jnp.asarray(n * interval), *rest)) for n in after]
    assert found == [3, 3, 3, 6, 6, 12, 20, 20]


def test_experts_with_the_highest_score_are_split_first() -> None:
    available = jnp.arange(6) < 3
    score = jnp.array([2.0, 1.0, 3.0, 9.0, 9.0, 9.0])
    parent, is_child, side = plan_splits(available, jnp.asarray(5), score)
    assert parent.tolist() == [0, 1, 2, 2, 0, 5]
    assert is_child.tolist() == [False, False, False, True, True, False]
    assert side.tolist() == [1.0, 0.0, 1.0, -1.0, -1.0, 0.0]
    parent, is_child, _ = plan_splits(available, jnp.asarray(3), score)
    assert parent.tolist() == list(range(6))
    assert not is_child.any()
    # At most twice as many.
    assert plan_splits(jnp.arange(6) < 1, jnp.asarray(6), score).is_child.sum() == 1


@pytest.mark.parametrize("n_experts", [3, 4])
def test_a_split_changes_what_the_committee_does_by_its_noise_alone(
    n_experts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = before_split(n_experts=n_experts)
    assert old.policy.hierarchy.available.sum() == 2
    monkeypatch.setattr(splitting, "NOISE", 0.0)
    monkeypatch.setattr(growth, "SHARPNESS", 0.0)
    new = split(old)
    assert new.policy.hierarchy.available.sum() == n_experts
    np.testing.assert_allclose(mixture(new), mixture(old), atol=1e-6)
    monkeypatch.undo()
    changed = 0.5 * np.abs(mixture(split(old)) - mixture(old)).sum(axis=1)
    assert 1e-4 < changed.max() < 0.15
    assert changed.mean() < 0.02


def test_a_child_shares_the_states_of_its_parent_and_has_the_costlier_ones() -> None:
    old = before_split(n_experts=4)
    new = split(old)
    select = eqx.filter_jit(lambda s: s.policy.decide(old.visited.observation))
    before, after = (np.asarray(select(s).selections[0].probs) for s in (old, new))
    parents = [
        int(np.argmin(np.abs(after[:, [m]] + after[:, :2] - before[:, :2]).mean(axis=0)))
        for m in (2, 3)
    ]
    assert sorted(parents) == [0, 1]
    costs = np.asarray(select(old).answers.kl(old.priors.stages[1].family))
    for child, parent in zip((2, 3), parents, strict=True):
        moved = after[:, child] + after[:, parent] - before[:, parent]
        assert np.abs(moved).mean() < 0.1
        own = np.asarray(old.visited.expert) == parent
        ratio = (after[:, child] / after[:, parent])[own]
        assert np.corrcoef(np.log(ratio), np.log(costs[own, parent]))[0, 1] > 0.3


def test_all_that_belongs_to_a_parent_is_copied_and_its_share_is_divided() -> None:
    old = before_split(n_experts=3, critic="paper")
    new = split(old)
    experts = new.policy.hierarchy.experts.network.layers[0].weight
    before = old.policy.hierarchy.experts.network.layers[0].weight
    np.testing.assert_array_equal(experts[:2], before[:2])
    sizes = np.abs(experts[2] - before).max(axis=(1, 2))
    parent = int(np.argmin(sizes))
    assert 0.0 < sizes[parent] < 0.05 * np.abs(before[parent]).max()

    def of_expert(state: AgentState) -> list:
        moments = next(s for s in state.optimiser if hasattr(s, "mu")).mu
        hierarchy, critics = moments
        return [
            hierarchy.experts.network.layers[0].weight,
            hierarchy.selector.layers[-1].bias,
            jax.tree.map(lambda leaf: leaf[1:], (critics.head.weight, state.critics.head.weight)),
            state.priors.stages[1].family.probs,
            state.priors.stages[1].mass,
        ]

    for was, now in zip(*map(jax.tree.leaves, map(of_expert, (old, new))), strict=True):
        np.testing.assert_allclose(now[:2], was[:2], rtol=1e-6)
        np.testing.assert_allclose(now[2], was[parent], rtol=1e-6)
    np.testing.assert_array_equal(new.critics.head.weight[0], old.critics.head.weight[0])
    was, now = (np.asarray(s.priors.stages[0].family.probs) for s in (old, new))
    np.testing.assert_allclose([now[parent], now[2]], [was[parent] / 2] * 2, rtol=1e-4)
    assert now[1 - parent] == pytest.approx(was[1 - parent], rel=1e-4)


def test_constant_experts_and_linear_selectors_can_be_split() -> None:
    agent = small("Pendulum-v1", expert="constant", selector_hidden=())
    assert learned_with_counts(agent)[-1] == 5
    assert np.isfinite(agent.responsibilities(np.zeros((2, 3)))).all()
    weights = agent.state_.policy.hierarchy.experts.network
    rows = np.asarray(jax.tree.leaves(weights)[0]).reshape(5, -1)
    assert len(np.unique(rows, axis=0)) == 5


def test_a_killed_run_goes_on_after_a_split_as_if_nothing_had_happened(tmp_path: Path) -> None:
    path = tmp_path / "run.pin"

    def kill(progress) -> None:
        if progress.step >= 64 * 11:
            raise SystemExit

    with pytest.raises(SystemExit):
        small().learn(1280, kill, checkpoint=path, report_every=64)
    assert_same(small().learn(1280, checkpoint=path), small().learn(1280))


def test_a_grown_agent_is_saved_and_a_growing_one_goes_on(tmp_path: Path) -> None:
    stopped(small()).save(tmp_path / "agent.pin")
    agent = SpecialistAgent.load(tmp_path / "agent.pin")
    assert agent.n_initial_experts == 2
    assert learned_with_counts(agent)[-1] == 5
    agent.save(tmp_path / "agent.pin")
    assert_same(agent, SpecialistAgent.load(tmp_path / "agent.pin"))


def test_files_and_checkpoints_from_before_there_was_growth_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = ("n_initial_experts", "growth_fraction")
    agent = small(n_initial_experts=None).learn(64)
    meta, state = agent._to_file()
    kept = {name: value for name, value in meta["settings"].items() if name not in new}
    monkeypatch.setattr(agent, "_to_file", lambda: (meta | {"settings": kept}, state))
    agent.save(tmp_path / "agent.pin")
    loaded = SpecialistAgent.load(tmp_path / "agent.pin")
    assert_same(agent, loaded)
    assert loaded.n_initial_experts is None

    old = small(n_initial_experts=None)
    identity = {name: value for name, value in old._identity().items() if name not in new}
    subject = {name: value for name, value in old._subject().items() if name not in new}
    monkeypatch.setattr(old, "_identity", lambda: identity)
    monkeypatch.setattr(old, "_subject", lambda: subject)
    old.learn(640, lambda progress: progress.step >= 128, checkpoint=tmp_path / "run.pin")
    resumed = small(n_initial_experts=None).learn(640, checkpoint=tmp_path / "run.pin")
    assert_same(resumed, small(n_initial_experts=None).learn(640))


def test_gymnasium_environments_serve_as_well() -> None:
    agent = small(lambda: gymnasium.make("CartPole-v1"))
    assert learned_with_counts(agent) == [2] * 9 + [4] * 2 + [5] * 9


def test_agents_that_grow_differently_share_one_program(caplog: pytest.LogCaptureFixture) -> None:
    settings = {name: v for name, v in SMALL.items() if name not in ("n_experts", "capacity")}
    small(seed=7).learn(1280, report_every=640)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        agents = train_agents(
            "CartPole-v1",
            1280,
            grid=({"n_experts": 5}, {"n_experts": 3, "growth_fraction": 0.1}),
            report_every=640,
            **settings,
        )
    assert not [r for r in caplog.records if "Compiling" in r.message]
    assert [int(a.state_.policy.hierarchy.available.sum()) for a in agents] == [5, 3]
    assert_same(agents[0], small().learn(1280))


def test_growth_is_the_same_in_a_process_with_double_precision() -> None:
    expected = small().learn(1280)
    with jax.enable_x64(True), jax.numpy_rank_promotion("raise"):
        agent = small().learn(1280)
    assert_same(agent, expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_initial_experts": 0}, "`n_initial_experts` must be"),
        ({"growth_fraction": 1.0}, "`growth_fraction` must be"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small(**settings)
