"""Agents against the exact solution of a decision process, with a future (γ = 0.8)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ring import RingParams, exact_policy, exact_ring, policy, ring_agent

from pinfactory.core.exact import ProcessSolution
from pinfactory.rl import SpecialistAgent


def critic_values(agent: SpecialistAgent) -> np.ndarray:
    """Return the value of every place, by each critic, the parts of a value summed."""
    x = agent.state_.policy.observations(jnp.eye(4))
    return np.asarray(agent.state_.critics(x)).sum(axis=-1)


def check(agent: SpecialistAgent, exact: ProcessSolution, tolerance: float = 0.05) -> None:
    """Compare policy, information and values with those of the exact solution."""
    np.testing.assert_allclose(policy(agent), exact_policy(exact), atol=tolerance)
    information = agent.information_
    assert information.selector == pytest.approx(exact.information_selector, abs=0.08)
    assert information.experts == pytest.approx(exact.information_experts, abs=0.08)
    # An expert that may not act has a critic that never learns.
    for values in critic_values(agent).T[: 1 + agent.n_experts]:
        np.testing.assert_allclose(values, exact.value, atol=0.15)


@pytest.mark.parametrize(("n_experts", "betas"), [(1, (1.0, 4.0)), (2, (8.0, 4.0))])
def test_an_agent_finds_the_exact_solution(n_experts: int, betas: tuple[float, float]) -> None:
    agent = ring_agent(n_experts, beta_selector=betas[0], beta_expert=betas[1]).learn(100_000)
    exact = exact_ring(n_experts, *betas)
    check(agent, exact)
    # What it pays for later counts: with costs left out, values are higher by a tenth.
    free = exact_ring(n_experts, 1e4, 1e4)
    assert np.min(free.value - exact.value) > 0.3


def test_in_units_of_the_return_the_scale_of_the_reward_does_not_matter() -> None:
    settings = {"units": "return", "beta_selector": 2.0, "beta_expert": 1.0}
    small, large = (
        ring_agent(2, params=RingParams(scale=scale), **settings).learn(100_000)
        for scale in (1.0, 64.0)
    )
    for one, other in zip(
        jax.tree.leaves(eqx.filter(small.state_.policy, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(large.state_.policy, eqx.is_inexact_array)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    # r/σ − (1 − γ)/β is r − σ (1 − γ)/β, up to a factor.
    deviation = float(np.sqrt(small.state_.scale.variance))
    exact = exact_ring(2, *(beta / (deviation * 0.2) for beta in (2.0, 1.0)))
    np.testing.assert_allclose(policy(small), exact_policy(exact), atol=0.05)
    np.testing.assert_allclose(deviation * critic_values(small)[:, 0], exact.value, atol=0.15)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [
        ({"critic": "paper"}, 0.05),
        ({"update": "plain", "learning_rate": 0.03}, 0.08),
        (
            {
                "update": "plain",
                "critic": "paper",
                "expectation": "sampled",
                "normalise": False,
                "max_grad_norm": None,
                "learning_rate": 0.03,
            },
            0.08,
        ),
    ],
)
def test_the_papers_ways_to_learn_find_it_with_one_expert(settings: dict, tolerance: float) -> None:
    agent = ring_agent(1, beta_expert=4.0, **settings).learn(200_000)
    check(agent, exact_ring(1, 1.0, 4.0), tolerance)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize(
    ("n_experts", "bits"),
    [(1, {"expert_bits": 0.5}), (2, {"selector_bits": 0.6, "expert_bits": 0.3})],
)
def test_budgets_in_bits_are_met(n_experts: int, bits: dict) -> None:
    # Enough environments to measure information within a hundredth of a bit.
    agent = ring_agent(n_experts, units="return", n_envs=512, batch_size=512, **bits)
    information = agent.learn(800_000).information_  # a budget that is missed would be an error
    for stage, asked in bits.items():
        reached = information.selector if stage == "selector_bits" else information.experts
        assert reached == pytest.approx(asked, rel=0.05)


def test_a_budget_that_a_stage_cannot_use_is_warned_of_with_the_number_reached() -> None:
    agent = ring_agent(1, expert_bits=5.0, units="return", n_envs=512, batch_size=512)
    with pytest.warns(UserWarning, match=r"`expert_bits` is 5, but [01]\.\d+ bits were reached"):
        agent.learn(8192)
