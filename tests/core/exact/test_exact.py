from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pinfactory.core import exact
from pinfactory.core.exact import Problem, State, leap, solve, step


def entropy_bits(*p):
    return scipy.special.entr(np.stack(np.broadcast_arrays(*p))).sum(axis=0) / np.log(2)


def objective_by_definition(p_x, p_m_given_x, p_y_given_x_m, utility, beta_selector, beta_expert):
    """E[U] − I(X;M)/β₁ − I(X;Y|M)/β₂ from the joint distribution, in nats."""
    joint = p_x[:, None, None] * p_m_given_x[..., None] * p_y_given_x_m
    p_x_m, p_m_y, p_m = joint.sum(2), joint.sum(0), joint.sum((0, 2))
    selector = scipy.special.rel_entr(p_x_m, p_x[:, None] * p_m).sum()
    experts = scipy.special.rel_entr(joint, p_x_m[..., None] * (p_m_y / p_m[:, None])).sum()
    expected = (joint.sum(1) * utility).sum()
    return expected - selector / beta_selector - experts / beta_expert


@pytest.mark.parametrize("bias", [0.5, 0.3, 0.1])
def test_one_expert_attains_the_rate_distortion_function_of_a_binary_source(bias):
    beta = np.geomspace(0.1, 30.0, 25)
    solution = solve(np.eye(2), 1, 1.0, beta, p_x=[bias, 1 - bias])
    distortion = np.minimum(1 / (1 + np.exp(beta)), bias)
    rate = entropy_bits(bias, 1 - bias) - entropy_bits(distortion, 1 - distortion)
    assert solution.converged.all()
    np.testing.assert_allclose(1 - solution.expected_utility, distortion, atol=1e-6)
    np.testing.assert_allclose(solution.information_experts, rate, atol=1e-6)
    np.testing.assert_allclose(solution.information_total, rate, atol=1e-6)
    np.testing.assert_allclose(solution.information_selector, 0.0, atol=1e-12)


@pytest.mark.parametrize(("beta_selector", "beta_expert"), [(8.0, 1.0), (3.0, 3.0), (1.0, 6.0)])
def test_no_direct_search_over_posteriors_finds_a_better_objective(beta_selector, beta_expert):
    rng = np.random.default_rng(3)
    utility, p_x = rng.normal(size=(3, 3)), np.array([0.5, 0.3, 0.2])

    def loss(logits):
        selector = scipy.special.softmax(logits[:6].reshape(3, 2), axis=-1)
        experts = scipy.special.softmax(logits[6:].reshape(3, 2, 3), axis=-1)
        return -objective_by_definition(p_x, selector, experts, utility, beta_selector, beta_expert)

    found = [
        scipy.optimize.minimize(loss, 2 * rng.normal(size=24), bounds=[(-30, 30)] * 24).fun
        for _ in range(6)
    ]
    solution = solve(utility, 2, beta_selector, beta_expert, p_x=p_x)
    assert float(solution.objective) == pytest.approx(-min(found), abs=1e-5)


# Most tables below have one shape, so that the solver is compiled once for all of them.
def random_table(seed):
    return np.random.default_rng(seed).random((6, 5))


@pytest.mark.parametrize("seed", range(4))
def test_a_cheap_selector_over_costly_experts_finds_the_best_hard_partition(seed):
    utility = random_table(seed)
    best = max(utility[:, trio].max(axis=1).mean() for trio in combinations(range(5), 3))
    solution = solve(utility, 3, 1e5, 0.02)
    assert float(solution.expected_utility) == pytest.approx(best, abs=1e-4)
    assert float(solution.information_experts) == pytest.approx(0.0, abs=1e-4)


def test_costly_information_leaves_the_best_constant_answer():
    utility = random_table(0)
    utility[:, 2] = 0.8
    solution = solve(utility, 3, 0.05, 0.05)
    assert float(solution.expected_utility) == pytest.approx(0.8, abs=1e-6)
    assert float(solution.information_total) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("beta", [400.0, 1e5])
def test_free_information_buys_the_best_answer_in_every_state(beta):
    utility = random_table(0)
    solution = solve(utility, 3, beta, beta)
    assert float(solution.expected_utility) == pytest.approx(utility.max(axis=1).mean(), abs=1e-5)


def test_the_coupled_equations_hold_at_the_solution():
    rng = np.random.default_rng(1)
    utility, p_x = rng.normal(size=(6, 5)), rng.dirichlet(np.ones(6))
    beta_selector, beta_expert = 6.0, 1.5
    solution = solve(utility, 3, beta_selector, beta_expert, p_x=p_x)

    weights = solution.p_y_given_m[None] * np.exp(beta_expert * utility)[:, None]
    partition = weights.sum(axis=-1)
    experts = weights / partition[..., None]
    selector = solution.p_m * np.exp(beta_selector * np.log(partition) / beta_expert)
    selector /= selector.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(solution.p_y_given_x_m(), experts, atol=1e-12)
    np.testing.assert_allclose(solution.p_m_given_x, selector, atol=1e-12)

    p_x_m = p_x[:, None] * solution.p_m_given_x
    np.testing.assert_allclose(p_x_m.sum(axis=0), solution.p_m, atol=1e-6)
    p_y = np.einsum("xm,xmy->my", p_x_m / p_x_m.sum(axis=0), experts)
    np.testing.assert_allclose(p_y, solution.p_y_given_m, atol=1e-6)


def test_reported_information_and_utility_follow_from_the_joint_distribution():
    rng = np.random.default_rng(2)
    utility, p_x = rng.normal(size=(6, 5)), rng.dirichlet(np.ones(6))
    solution = solve(utility, 3, 5.0, 2.0, p_x=p_x)
    experts, answers = solution.p_y_given_x_m(), solution.p_y_given_x()
    p_m = p_x @ solution.p_m_given_x
    p_m_y = np.einsum("x,xm,xmy->my", p_x, solution.p_m_given_x, experts)

    def total(p):
        return scipy.special.entr(p).sum() / np.log(2)

    selector = total(p_m) - sum(
        w * total(p) for w, p in zip(p_x, solution.p_m_given_x, strict=True)
    )
    conditional = sum(
        p_x[x] * solution.p_m_given_x[x, m] * total(experts[x, m])
        for x in range(6)
        for m in range(3)
    )
    overall = total(p_x @ answers) - sum(w * total(p) for w, p in zip(p_x, answers, strict=True))
    assert float(solution.information_selector) == pytest.approx(selector, abs=1e-9)
    assert float(solution.information_experts) == pytest.approx(
        total(p_m_y) - total(p_m) - conditional, abs=1e-9
    )
    assert float(solution.information_total) == pytest.approx(overall, abs=1e-9)
    assert float(solution.effective_experts) == pytest.approx(2 ** total(p_m), abs=1e-9)
    assert float(solution.expected_utility) == pytest.approx(p_x @ (answers * utility).sum(1))
    assert float(solution.objective) == pytest.approx(
        objective_by_definition(p_x, solution.p_m_given_x, experts, utility, 5.0, 2.0), abs=1e-9
    )


positive = st.floats(min_value=1e-2, max_value=1e2)


@settings(deadline=None, max_examples=50)
@given(
    utility=arrays(np.float64, (6, 5), elements=st.floats(-3, 3)),
    betas=st.tuples(positive, positive),
    seed=st.integers(0, 2**31),
    log_space=st.booleans(),
)
def test_the_objective_never_decreases(utility, betas, seed, log_space):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        problem = build(utility, rng.dirichlet(np.ones(6)), *betas, log_space=log_space)
        for move in (step, leap):
            state, objectives = random_state(rng), []
            for _ in range(15):
                state = jitted[move](problem, state)
                objectives.append(float(state.objective))
            slack = 1e-12 * (1 + 1 / min(betas))
            assert np.diff(objectives).min() >= -slack
            assert np.isfinite(objectives).all()


jitted = {move: jax.jit(move) for move in (step, leap)}


def build(utility, p_x, *betas, log_space):
    return Problem.build(*map(jnp.asarray, (utility, p_x, *betas)), log_space=log_space)


def random_state(rng):
    log_p_m = jnp.log(rng.dirichlet(np.ones(3)))
    log_p_y = jnp.log(rng.dirichlet(np.ones(5), size=3))
    return State(log_p_m, log_p_y, jnp.array(-jnp.inf))


def test_matrix_products_and_log_space_take_the_same_step():
    rng = np.random.default_rng(0)
    utility, p_x = rng.normal(size=(6, 5)), rng.dirichlet(np.ones(6))
    with jax.enable_x64(True):
        state = random_state(rng)
        for beta in (0.01, 1.0, 100.0):
            fast, safe = (
                jitted[step](build(utility, p_x, 2 * beta, beta, log_space=log_space), state)
                for log_space in (False, True)
            )
            np.testing.assert_allclose(fast.log_p_m, safe.log_p_m, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(fast.log_p_y, safe.log_p_y, rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(fast.objective, safe.objective, rtol=1e-12)


def test_solutions_agree_on_both_sides_of_the_switch_to_log_space(monkeypatch):
    utility = random_table(5)
    fast = solve(utility, 3, 20.0, 5.0)
    monkeypatch.setattr(exact._solve, "_SAFE_EXPONENT", 0.0)
    safe = solve(utility, 3, 20.0, 5.0)
    for name in ("objective", "information_selector", "information_experts", "information_total"):
        np.testing.assert_allclose(getattr(fast, name), getattr(safe, name), atol=1e-6)


def test_a_grid_gives_what_its_points_give_alone():
    beta_selector, beta_expert = np.array([[2.0], [30.0]]), np.array([1.0, 5.0, 20.0])
    grid = solve(random_table(4), 3, beta_selector, beta_expert)
    assert grid.p_m_given_x.shape == (2, 3, 6, 3)
    assert grid.p_y_given_x_m().shape == (2, 3, 6, 3, 5)
    for i, j in np.ndindex(2, 3):
        point = solve(random_table(4), 3, beta_selector[i, 0], beta_expert[j])
        for name in ("objective", "information_total"):
            assert getattr(point, name) == pytest.approx(getattr(grid, name)[i, j], abs=1e-6)


def test_other_prices_tables_and_seeds_compile_nothing_new():
    solve(random_table(0), 3, 1.0, 1.0)
    compiled = exact._solve._solve_grid._cache_size()
    solve(random_table(1), 3, 7.0, 2, p_x=np.full(6, 1 / 6), tolerance=1e-8, seed=5)
    assert exact._solve._solve_grid._cache_size() == compiled


def test_the_utilities_of_impossible_states_change_nothing():
    p_x, utility = np.array([0.2, 0.2, 0.2, 0.2, 0.2, 0.0]), random_table(6)
    other = utility.copy()
    other[5] = utility[5, ::-1]
    one, two = (solve(table, 3, 20.0, 2.0, p_x=p_x) for table in (utility, other))
    assert float(one.objective) == pytest.approx(float(two.objective), abs=1e-9)
    np.testing.assert_allclose(one.p_m_given_x.sum(axis=-1), 1.0)


def test_more_experts_than_states_and_constant_tables_are_solved():
    solution = solve(np.eye(2), 5, 100.0, 0.1)
    assert float(solution.expected_utility) == pytest.approx(1.0, abs=1e-3)
    constant = solve(np.full((6, 5), -7.0), 3, 10.0, 10.0)
    assert float(constant.objective) == pytest.approx(-7.0)
    assert bool(constant.converged)


def test_the_same_seed_gives_the_same_float64_numbers():
    one, two = (solve(random_table(7), 3, 50.0, 1.0, seed=3) for _ in range(2))
    assert one.p_m_given_x.dtype == np.float64
    np.testing.assert_array_equal(one.p_m_given_x, two.p_m_given_x)


def test_running_out_of_iterations_is_reported():
    solution = solve(random_table(8), 3, 5.0, 1.0, max_iterations=3)
    assert not solution.converged


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"utility": [[1.0, np.nan]]}, "utility must be finite"),
        ({"utility": [1.0, 2.0]}, "utility must be a table"),
        ({"n_experts": 0}, "n_experts must be at least 1, but got 0"),
        ({"n_restarts": 0}, "n_restarts must be at least 1, but got 0"),
        ({"beta_selector": 0.0}, "beta_selector must be positive and finite, but got 0.0"),
        ({"beta_expert": [1.0, np.inf]}, "beta_expert must be positive and finite, but got inf"),
        ({"beta_expert": np.nan}, "beta_expert must be positive and finite, but got nan"),
        ({"beta_expert": []}, "beta_expert must be a number or a non-empty array"),
        ({"p_x": [0.5, 0.6]}, "p_x must be non-negative and sum to one, but got sum 1.1"),
        ({"p_x": [-0.5, 1.5]}, "p_x must be non-negative and sum to one"),
        ({"p_x": [1.0]}, r"p_x must have shape \(2,\), but got \(1,\)"),
        ({"tolerance": -1.0}, "tolerance must be non-negative, but got -1.0"),
    ],
)
def test_wrong_arguments_are_refused_by_name(change, message):
    arguments = {
        "utility": np.eye(2), "n_experts": 2, "beta_selector": 1.0, "beta_expert": 1.0
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        solve(**arguments | change)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_table_of_a_thousand_by_a_thousand_is_divided_among_sixteen_experts():
    centres = np.random.default_rng(0).permutation(np.repeat(np.arange(16), 63))[:1000]
    utility = (centres[:, None] == centres[None, :]).astype(float)
    solution = solve(utility, 16, 50.0, 0.5)
    share = np.bincount(centres, minlength=16) / 1000
    assert bool(solution.converged)
    assert float(solution.expected_utility) > 0.9
    assert float(solution.information_selector) <= entropy_bits(*share) + 1e-9
