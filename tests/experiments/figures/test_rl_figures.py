import sys

import jax
import numpy as np
import pytest

from pinfactory.experiments.balancing import play, play_original
from pinfactory.experiments.controls.agents import AGENT_CONTROLS
from pinfactory.experiments.figures import rl_balance, rl_cart_pole, rl_swing_up
from pinfactory.experiments.figures._rl import first_above
from pinfactory.experiments.figures._rl_starts import BACKWARD, starts
from pinfactory.experiments.figures._rl_trpo import train_trpo
from pinfactory.rl import envs

gymnasium = pytest.importorskip("gymnasium")


def curves(n_experts: int, level: float, n: int = 4) -> dict:
    """Return made-up results of one training."""
    rise = np.linspace(0.1, 1.0, n) * level
    return {
        "steps": [1000 * (i + 1) for i in range(n)],
        "deterministic": rise.tolist(),
        "stochastic": (0.9 * rise).tolist(),
        "selector_bits": [0.5] * n,
        "expert_bits": [0.2] * n,
        "prior": [[1.0 / n_experts] * n_experts] * n,
        "final_deterministic": level,
        "final_stochastic": 0.9 * level,
        "best_deterministic": level,
        "best_stochastic": 0.9 * level,
        "effective_experts": float(n_experts),
        "responsibility": [1.0 / n_experts] * n_experts,
        "action_priors": [[-0.2, 0.0, 0.2]] * n_experts,
    }


def titles(figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


@pytest.fixture(params=[True, False], ids=["with TRPO", "without sb3-contrib"])
def balance(request) -> tuple[dict, bool]:
    results = {
        f"{kind}, seed {seed}": {**curves(settings["n_experts"], 9350.0 - seed), "kind": kind}
        for kind, settings in rl_balance.KINDS.items()
        for seed in range(2)
    }
    theirs = curves(1, 9400.0) if request.param else {"missing": "sb3_contrib"}
    return results | {"TRPO, seed 0": {**theirs, "kind": "TRPO"}}, request.param


def test_balance_shows_returns_bits_and_priors(balance) -> None:
    results, _ = balance
    shown = titles(rl_balance.draw(results))
    assert {"Return, deterministic", "I(S;M), the selector", "Prior of each expert, p(m)"} <= {
        *shown
    }


def test_where_trpo_is_missing_the_figure_says_so(balance) -> None:
    results, there = balance
    words = [text.get_text() for axes in rl_balance.draw(results).axes for text in axes.texts]
    assert ("TRPO: sb3-contrib is not installed" in words) == (not there)
    assert any("TRPO" in m.name for m in rl_balance.measures(results)) == there


def test_balance_is_judged_by_the_share_of_seeds(balance) -> None:
    results, _ = balance
    judged = {m.name: m for m in rl_balance.measures(results)}
    assert judged["share of seeds with at least 9,300, best kept, 5 linear experts"].passed
    results["5 linear experts, seed 0"]["best_deterministic"] = 100.0
    judged = {m.name: m for m in rl_balance.measures(results)}
    assert judged["share of seeds with at least 9,300, best kept, 5 linear experts"].ours == 0.5
    assert judged["steps to the first 9,300, median, 5 linear experts"].ours == 4000.0


def test_steps_to_a_level_are_infinite_if_it_is_never_reached() -> None:
    assert first_above(curves(1, 10.0), 9.0) == 4000.0
    assert first_above(curves(1, 10.0), 11.0) == float("inf")


def test_without_sb3_contrib_trpo_is_reported_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.setattr("pinfactory.experiments.figures._rl_trpo.find_spec", lambda name: None)
    found = train_trpo(10, 0, reports=1, n_episodes=1, n_judged=1)
    assert found == {"missing": "sb3_contrib"}


# A linear-quadratic regulator balances for all of the 1,000 steps, without control it falls.
REGULATOR = (-0.1, -1.0, -4.4, 0.0, 0.0, -0.2, -0.6, -0.7, 0.0)


@pytest.mark.parametrize(("gain", "n", "least"), [(REGULATOR, 3, 9350.0), ((0.0,) * 9, 30, 0.0)])
def test_episodes_from_the_same_start_return_the_same_in_the_original(gain, n, least) -> None:
    def act(observation: np.ndarray) -> np.ndarray:
        return observation @ np.array(gain, np.float32)[:, None]

    ours, theirs = play(act, n, seed=0), play_original(act, n, seed=0)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert np.min(ours) > least


def test_starts_leave_upright_further_from_one_body_to_the_next_and_others_hang() -> None:
    env, n = rl_swing_up.TASKS["double pendulum"].env(), 400
    for phase in BACKWARD:
        states, _ = envs.reset_all(env, jax.random.key(0), starts(phase, n))
        position = np.asarray(states.position)
        hanging = np.abs(position[:, 1] - np.pi) <= 0.1 + 1e-6
        assert hanging[n - round(phase.hanging * n) :].all()
        standing = np.abs(position[: n - round(phase.hanging * n), 1:])
        assert np.max(standing) <= phase.widest
        assert np.max(standing[:20]) < 0.2 + 0.1 * phase.widest
        assert np.max(standing[-20:]) > 0.8 * phase.widest
        assert np.max(np.abs(position[:, 0])) <= 0.6  # on the rail
    assert sum(phase.share for phase in BACKWARD) == pytest.approx(1.0)


def swing(task: str, kind: str, level: float) -> dict:
    n = rl_swing_up.KINDS[kind]["n_experts"]
    random = np.random.default_rng(0)
    return {
        **curves(n, 1.0),
        "final_deterministic": level,
        "final_stochastic": level,
        "task": task,
        "agent": kind,
        "view": random.uniform(-3, 3, (50, 2)),
        "responsible": random.dirichlet(np.ones(n), 50),
        "upright": random.uniform(size=n),
        "n_parameters": 1389,
    }


@pytest.fixture
def swings() -> dict:
    return {
        f"{task}, {kind}, seed 0": swing(
            task, kind, -900.0 if kind == rl_swing_up.ONE and task == "pendulum" else 400.0
        )
        for task in rl_swing_up.TASKS
        for kind in rl_swing_up.KINDS
    }


def swing_control(task: str, name: str, level: float) -> dict:
    committee = "8 linear experts" if task == "double pendulum" else "5 linear experts"
    return {
        "task": task,
        "control": name,
        "committee": committee,
        "final_deterministic": level,
        "final_stochastic": level,
        "effective_experts": 2.0,
        "n_parameters": 1400,
    }


def test_swing_ups_show_every_task_and_who_balances(swings) -> None:
    shown = titles(rl_swing_up.draw(swings))
    for task in rl_swing_up.TASKS.values():
        assert task.title in shown
    assert shown.count("Who swings, who balances") == len(rl_swing_up.TASKS)


def test_controls_of_swing_ups_stand_beside_the_largest_committee(swings) -> None:
    controls = {
        f"{task}, control: constant experts, seed {seed}": swing_control(
            task, "constant experts", -150.0 - 100.0 * seed
        )
        for task in rl_swing_up.TASKS
        for seed in range(2)
    }
    judged = {m.name: m.ours for m in rl_swing_up.measures(swings | controls)}
    assert judged["share of seeds that solve it, pendulum, control: constant experts"] == 0.5
    assert judged["return, stochastic, cart-pole, control: constant experts"] == -200.0
    assert judged["parameters, pendulum, control: constant experts"] == 1400
    figure = rl_swing_up.draw(swings | controls)
    shown = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Controls")]
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in shown]
    assert labels == [
        ["5 linear experts", "constant experts"],
        ["5 linear experts", "constant experts"],
        ["8 linear experts", "constant experts"],
    ]


def test_all_controls_are_of_the_full_measurement_and_few_of_the_quick_one() -> None:
    full, quick = (
        rl_swing_up.pieces(settings)
        for settings in (rl_swing_up.Settings.paper(seeds=1), rl_swing_up.Settings.quick())
    )
    assert [name for name in quick if "control" in name] == [
        "pendulum, control: constant experts, seed 0"
    ]
    for task in rl_swing_up.TASKS:
        for name in AGENT_CONTROLS:
            piece = full[f"{task}, control: {name}, seed 0"]
            assert piece.args[3] == swing_control(task, name, 0.0)["committee"]
    assert "pendulum, 5 linear experts, grown, seed 0" in full


def test_swing_ups_are_judged_by_both_kinds_of_return(swings) -> None:
    judged = {m.name: m for m in rl_swing_up.measures(swings)}
    assert judged["share of seeds that solve it, pendulum, 5 linear experts"].passed
    alone = judged["share of seeds that solve it, pendulum, 1 linear expert"]
    assert alone.ours == 0.0
    assert alone.passed is None
    swings["pendulum, 5 linear experts, seed 0"]["final_stochastic"] = -300.0
    judged = {m.name: m for m in rl_swing_up.measures(swings)}
    assert not judged["share of seeds that solve it, pendulum, 5 linear experts"].passed


@pytest.mark.parametrize("name", list(rl_swing_up.TASKS))
def test_upright_states_are_recognised(name: str) -> None:
    task = rl_swing_up.TASKS[name]
    size = task.env().observation_space.shape[0]
    up, down = np.zeros((1, size)), np.zeros((1, size))
    cosines = {"pendulum": [0], "cart-pole": [2], "double pendulum": [3, 4]}[name]
    up[:, cosines] = 1.0
    down[:, cosines[:1]] = -1.0
    down[:, cosines[1:]] = 1.0
    assert task.view(up)[2].all()
    assert not task.view(down)[2].any()


def test_the_matrix_of_cart_pole_has_histograms_on_its_diagonal() -> None:
    random = np.random.default_rng(0)
    piece = {
        **curves(2, 500.0),
        "best_deterministic": 500.0,
        "best_stochastic": 500.0,
        "final_deterministic": 480.0,
        "final_stochastic": 500.0,
        "states": random.normal(size=(40, 4)),
        "share": random.uniform(size=40),
    }
    figure = rl_cart_pole.draw({"seed 0": piece})
    grid = np.array(figure.axes).reshape(4, 4)
    for row in range(4):
        for column in range(4):
            assert bool(grid[row, column].collections) == (row != column)
            assert bool(grid[row, column].patches) == (row == column)
    kept, last, *_ = rl_cart_pole.measures({"seed 0": piece})
    assert kept.passed
    assert last.ours == 0.0


def test_a_cooled_beta_stands_beside_the_fixed_one_and_nowhere_else() -> None:
    fixed, cooled = curves(2, 500.0), curves(2, 400.0)
    rows = rl_cart_pole.measures({"seed 0": fixed, f"seed 0{rl_cart_pole.COOLED}": cooled})
    found = {row.name: row.ours for row in rows}
    assert found["return, stochastic"] == found["return at the end, stochastic, fixed β"] == 450.0
    assert found["return at the end, stochastic, cooled β"] == 360.0
    # The made-up curves rise evenly from a tenth to all of 0.9 times the level.
    over = "mean return over training, stochastic, {} β"
    assert found[over.format("fixed")] == pytest.approx(0.55 * 450.0)
    assert found[over.format("cooled")] == pytest.approx(0.55 * 360.0)


# What `make run` does not do: the paper's agents, and learning in phases. Who learns beside them is
# the one of the same name.
TINY = {
    rl_balance: (
        {"total": 2048, "reports": 2, "trpo_seeds": 0, "n_episodes": 2, "n_judged": 2},
        ("5 linear experts", "5 networks"),
    ),
    rl_cart_pole: ({"total": 2048, "reports": 2, "longer": 4096}, ("seed",)),
    rl_swing_up: (
        {"tasks": ("double pendulum",), "steps": (4 * 8192,), "reports": 2},
        ("1 linear expert",),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("module", TINY)
def test_a_tiny_run_gives_a_figure_and_numbers(module) -> None:
    small, kinds = TINY[module]
    settings = module.Settings.quick(method="both", seeds=1, **small)
    results = {
        name: work()
        for name, work in module.pieces(settings).items()
        if any(kind in name for kind in kinds)
    }
    assert module.draw(results).axes
    rows = module.measures(results)
    assert all(np.isfinite(m.ours) for m in rows)
    assert any(m.paper_method is not None for m in rows)
