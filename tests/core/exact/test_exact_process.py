import numpy as np
import pytest
import scipy.optimize
import scipy.special

from pinfactory.core.exact import ProcessSolution, solve, solve_process

START = np.array([0.4, 0.3, 0.2, 0.1])
PRICES = {"beta_selector": 8.0, "beta_expert": 4.0}
BETAS = tuple(PRICES.values())


def random_process(seed: int, ends: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return transitions and rewards of four states that need three actions."""
    rng = np.random.default_rng(seed)
    reward = np.eye(3)[[0, 1, 2, 0]] + 0.3 * rng.normal(size=(4, 3))
    return (1.0 - ends) * rng.dirichlet(np.ones(4), size=(4, 3)), reward


def discounted_counts(policy: np.ndarray, transition: np.ndarray, gamma: float) -> np.ndarray:
    """Return Σ_t γ^t P(x_t = x), by summing the series."""
    now, counts = START, 0.0 * START
    chain = gamma * np.einsum("xy,xyz->xz", policy, transition)
    for _ in range(110):
        counts, now = counts + now, now @ chain
    return counts


def free_energy(selector, experts, transition, reward, betas, gamma) -> float:
    """Return the discounted free energy of policies whose priors are their marginals."""
    counts = discounted_counts(np.einsum("xm,xmy->xy", selector, experts), transition, gamma)
    joint = counts[:, None, None] * selector[..., None] * experts
    p_x = counts / counts.sum()
    p_x_m, p_m_y = joint.sum(2), joint.sum(0)
    p_m = p_x_m.sum(axis=0)
    nats = [
        scipy.special.rel_entr(p_x_m, p_x[:, None] * p_m).sum(),
        scipy.special.rel_entr(joint, p_x_m[..., None] * p_m_y / p_m[:, None]).sum(),
    ]
    return float(np.sum(joint.sum(1) * reward) - nats[0] / betas[0] - nats[1] / betas[1])


def solved(seed: int = 0, ends: float = 0.0, **changes) -> ProcessSolution:
    settings = {"n_experts": 2, "gamma": 0.8} | PRICES
    return solve_process(*random_process(seed, ends), start=START, **settings | changes)


def test_no_direct_search_over_policies_finds_a_better_free_energy() -> None:
    transition, reward = random_process(2, ends=0.2)
    rng = np.random.default_rng(1)

    def loss(logits: np.ndarray) -> float:
        selector = scipy.special.softmax(logits[:8].reshape(4, 2), axis=-1)
        experts = scipy.special.softmax(logits[8:].reshape(4, 2, 3), axis=-1)
        return -free_energy(selector, experts, transition, reward, BETAS, 0.8)

    found = [
        scipy.optimize.minimize(loss, 2 * rng.normal(size=32), bounds=[(-15, 15)] * 32).fun
        for _ in range(2)
    ]
    solution = solved(2, ends=0.2)
    assert solution.converged
    assert min(solution.information_selector, solution.information_experts) > 0.1
    assert -min(found) - 1e-7 <= solution.objective <= -min(found) + 0.01
    policies = (solution.p_m_given_x, solution.p_y_given_x_m)
    best = np.concatenate([np.log(np.maximum(p, 1e-9)).ravel() for p in policies])
    slope = scipy.optimize.approx_fprime(best, loss, 1e-5)
    np.testing.assert_allclose(slope, 0.0, atol=1e-4)
    # What it reports is what its own policies bring.
    by_definition = free_energy(*policies, transition, reward, BETAS, 0.8)
    assert solution.objective == pytest.approx(by_definition, abs=1e-7)


def test_without_a_future_it_is_the_solution_of_the_table() -> None:
    transition, reward = random_process(2)
    table = solve(reward, 2, *BETAS, p_x=START)
    process = solve_process(transition, reward, 2, *BETAS, gamma=0.0, start=START)
    np.testing.assert_allclose(process.occupancy, START, atol=1e-12)
    assert process.objective == pytest.approx(float(table.objective), abs=1e-9)
    for name in ("selector", "experts", "total"):
        bits = getattr(process, f"information_{name}")
        assert bits == pytest.approx(float(getattr(table, f"information_{name}")), abs=1e-4)


def test_free_information_gives_ordinary_value_iteration() -> None:
    transition, reward = random_process(3)
    value = np.zeros(4)
    for _ in range(500):
        value = (reward + 0.8 * transition @ value).max(axis=1)
    solution = solved(3, beta_selector=1e6, beta_expert=1e6)
    np.testing.assert_allclose(solution.value, value, atol=1e-4)
    assert solution.expected_return == pytest.approx(START @ value, abs=1e-4)


def test_costly_information_leaves_the_best_policy_that_looks_at_nothing() -> None:
    transition, reward = random_process(4)

    def blind(logits: np.ndarray) -> float:
        policy = np.tile(scipy.special.softmax(logits), (4, 1))
        return -np.sum(discounted_counts(policy, transition, 0.8) * (policy * reward).sum(1))

    searched = [scipy.optimize.minimize(blind, 3.0 * row).fun for row in np.eye(3)]
    solution = solved(4, beta_selector=1e-4, beta_expert=1e-4)
    assert solution.expected_return == pytest.approx(-min(searched), abs=1e-3)
    assert solution.information_total == pytest.approx(0.0, abs=1e-6)


def test_the_objective_never_falls_with_more_steps() -> None:
    reached = [solved(2, max_iterations=n).objective for n in (1, 4, 10)]
    assert np.all(np.diff(reached) >= -1e-12)


def test_the_objective_is_the_return_less_what_information_costs() -> None:
    # Without an end, discounted steps sum to 1/(1 − γ).
    solution = solved(2)
    nats = np.log(2) * np.array([solution.information_selector, solution.information_experts])
    paid = 1.0 / (1.0 - 0.8) * (nats[0] / BETAS[0] + nats[1] / BETAS[1])
    assert solution.objective == pytest.approx(solution.expected_return - paid, abs=1e-6)
    assert solution.objective == pytest.approx(START @ solution.value)


@pytest.mark.parametrize(
    ("average", "ends"), [("discounted", 0.3), ("visited", 0.3), ("visited", 0)]
)
def test_priors_are_marginals_over_the_states_that_were_asked_for(
    average: str, ends: float
) -> None:
    transition, _ = random_process(5, ends)
    solution = solved(5, ends, average=average)
    policy = np.einsum("xm,xmy->xy", solution.p_m_given_x, solution.p_y_given_x_m)
    if average == "discounted":
        counts = discounted_counts(policy, transition, 0.8)
    else:  # power iteration of the chain that starts again
        chain = np.einsum("xy,xyz->xz", policy, transition)
        chain = chain + (1.0 - chain.sum(axis=1))[:, None] * START
        counts = np.linalg.matrix_power(chain, 500)[0]
    occupancy = counts / counts.sum()
    np.testing.assert_allclose(solution.occupancy, occupancy, atol=1e-7)
    p_x_m = occupancy[:, None] * solution.p_m_given_x
    np.testing.assert_allclose(solution.p_m, p_x_m.sum(axis=0), atol=1e-5)
    marginal = np.einsum("xm,xmy->my", p_x_m / p_x_m.sum(axis=0), solution.p_y_given_x_m)
    np.testing.assert_allclose(solution.p_y_given_m, marginal, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 1.0}, "below 1"),
        ({"average": "mean"}, "'discounted' or 'visited'"),
        ({"n_experts": 0}, "at least 1"),
        ({"beta_expert": 0.0}, "positive"),
    ],
)
def test_wrong_numbers_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        solved(**changes)


def test_tables_must_fit_together() -> None:
    transition, reward = random_process(0)
    for wrong in (transition[:2], 1.5 * transition, -transition):
        with pytest.raises(ValueError, match="transition must"):
            solve_process(wrong, reward, 1, 1.0, 1.0, gamma=0.5)
