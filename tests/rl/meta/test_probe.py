"""How the first steps are spent, and what they tell."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import mutual_info_score
from sklearn.preprocessing import StandardScaler

from pinfactory.core.families import Categorical
from pinfactory.rl.actions import BoxActions, DiscreteActions
from pinfactory.rl.meta import (
    MetaSpecialistAgent,
    ParameterFamily,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
)
from pinfactory.rl.meta.evaluate import group_values, information_about
from pinfactory.rl.meta.losses import selector_loss
from pinfactory.rl.meta.policy import Probe, probe_and_select
from pinfactory.rl.meta.state import SelectorReplay

TINY = {
    "n_tasks": 4,
    "n_steps": 8,
    "selector_units": 8,
    "expert_hidden": (8, 8),
    "critic_hidden": (8, 8),
}


def test_a_shake_pushes_to_and_fro_at_a_pace_for_each_number() -> None:
    actions = BoxActions((-1.0, 0.0), (1.0, 4.0), (2,))
    plan = Probe("shake", 4, 0.1).plan(actions, jnp.full((4, 3, 2), 0.5))
    first, second = [0.1, -0.1, 0.1, -0.1], [2.2, 2.2, 1.8, 1.8]
    np.testing.assert_allclose(plan[:, 1, 0], first, rtol=1e-6)
    np.testing.assert_allclose(plan[:, 2, 1], second, rtol=1e-6)


def test_a_shake_of_choices_takes_them_in_turn() -> None:
    plan = Probe("shake", 5, 0.1).plan(DiscreteActions(3), jnp.full((5, 2, 1), 0.5))
    np.testing.assert_array_equal(plan[:, 0], [0, 1, 2, 0, 1])


def test_noise_has_the_size_it_was_given(rng: np.random.Generator) -> None:
    uniform = jnp.asarray(rng.uniform(size=(5, 20_000, 1)), jnp.float32)
    plan = Probe("noise", 5, 0.2).plan(BoxActions((-3.0,), (3.0,), (1,)), uniform)
    np.testing.assert_allclose(np.std(plan), 0.6, rtol=0.02)
    np.testing.assert_allclose(np.mean(plan), 0.0, atol=0.01)


@pytest.mark.parametrize("kind", ["prior", "expert"])
def test_experts_who_probe_are_drawn_from_the_prior(
    points: ParameterFamily, kind: str, rng: np.random.Generator
) -> None:
    policy = MetaSpecialistAgent(points, 3, probe=kind, **TINY).state_.policy
    shares = np.array([0.2, 0.5, 0.3])
    prior = Categorical.from_probs(jnp.asarray(shares, jnp.float32))
    policy = eqx.tree_at(lambda p: p.priors.stages[0].family, policy, prior)
    experts = np.asarray(policy.plan(jnp.asarray(rng.uniform(size=(5, 4000, 2)), jnp.float32)))
    np.testing.assert_allclose(np.bincount(experts[0]) / 4000, shares, atol=0.03)
    stays = np.mean(experts == experts[:1])
    # Two independent draws agree with probability Σ p².
    assert stays == 1.0 if kind == "expert" else abs(stays - (1 + 4 * np.sum(shares**2)) / 5) < 0.03


def test_two_transitions_tell_the_sign_of_a_motor_and_nobody_falls() -> None:
    policy = MetaSpecialistAgent(double_pendulum_tasks(), 2, **TINY).state_.policy
    found = []
    for family in (double_pendulum_tasks(), double_pendulum_new_tasks()):
        params = family.draw(np.random.default_rng(0), 500)
        rows, _ = probe_and_select(family.env, jax.random.key(0), params, policy)
        found.append((np.asarray(rows).reshape(500, -1), np.asarray(params.control_sign)))
        # The reward of a step in which the tip has fallen is negative.
        assert np.all(np.asarray(rows)[:, :, 10] > 0.0)
    scale = StandardScaler().fit(found[0][0])
    linear = LogisticRegression(max_iter=300).fit(scale.transform(found[0][0]), found[0][1])
    assert linear.score(scale.transform(found[1][0]), found[1][1]) > 0.99


def test_information_about_a_parameter_is_the_mutual_information(rng: np.random.Generator) -> None:
    values = rng.normal(size=1000)
    experts = (values + rng.normal(size=1000) > 0).astype(int)
    bits = information_about(group_values(values), np.eye(2)[experts])
    quarters = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values)
    assert bits == pytest.approx(mutual_info_score(quarters, experts) / np.log(2.0), abs=1e-6)
    np.testing.assert_array_equal(group_values(np.array([1.0, -1.0, 1.0])), [1, 0, 1])


def test_the_best_selector_has_the_free_energy_of_the_closed_form(points: ParameterFamily) -> None:
    """max_p Σ p F − 1/β KL(p ‖ q) = 1/β log Σ q exp(β F), at p ∝ q exp(β F)."""
    agent = MetaSpecialistAgent(
        points, 3, n_initial_experts=3, beta_selector=2.0, balance_coef=0.0, **TINY
    )
    worth, prior = np.array([0.3, -0.5, 1.0]), np.array([0.2, 0.5, 0.3])
    state = eqx.tree_at(
        lambda m: m.policy.priors.stages[0].family,
        agent.state_,
        Categorical.from_probs(jnp.asarray(prior, jnp.float32)),
    )

    def constant(network, outputs):
        readout = (jnp.zeros_like(network.readout.weight), jnp.asarray(outputs, jnp.float32))
        return eqx.tree_at(lambda n: (n.readout.weight, n.readout.bias), network, readout)

    best = constant(state.policy.hierarchy.selector, np.log(prior) + 2.0 * worth)
    # The critic has what rewards bring and what information costs apart.
    critic = constant(state.selector_critic, np.stack([worth + 1.0, -np.ones(3)], axis=1).ravel())
    observed = jnp.tile(jnp.array([1.3, -1.0]), (6, 1))
    replay = SelectorReplay(jnp.zeros((6, 5, 4)), jnp.zeros(6, jnp.int32), observed, jnp.zeros(6))
    loss, (error, nats) = eqx.filter_jit(selector_loss)(
        (best, critic), replay, state, jnp.asarray(0.0)
    )
    assert float(error) == pytest.approx(0.0, abs=1e-6)
    expected = logsumexp(np.log(prior) + 2.0 * worth) / 2.0
    assert -float(loss) == pytest.approx(expected, rel=1e-4)
    posterior = prior * np.exp(2.0 * worth)
    posterior /= posterior.sum()
    assert float(nats) == pytest.approx(np.sum(posterior * np.log(posterior / prior)), rel=1e-4)
