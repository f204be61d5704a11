import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ring import ring_agent

from pinfactory.rl import SpecialistAgent
from pinfactory.rl.normalise import Moments
from pinfactory.rl.optimise import random_minibatches
from pinfactory.rl.ppo import clipped_surrogate
from pinfactory.rl.state import Hyperparameters


def test_shuffles_are_permutations_and_differ() -> None:
    orders = np.asarray(random_minibatches(jax.random.key(0), 5, 1000, 1000))
    np.testing.assert_array_equal(np.sort(orders, axis=1), np.tile(np.arange(1000), (5, 1)))
    assert len(np.unique(orders[:, 0])) > 1
    assert abs(np.corrcoef(orders[0], np.arange(1000))[0, 1]) < 0.15


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain"),
    [(1.5, 1.0, 1.2), (1.1, 1.0, 1.1), (0.5, 1.0, 0.5), (0.5, -1.0, -0.8), (1.5, -1.0, -1.5)],
)
def test_clipped_gain_stops_rewarding_changes_beyond_the_clip(
    ratio: float, advantage: float, gain: float
) -> None:
    actual = clipped_surrogate(
        jnp.log(ratio), jnp.zeros(()), jnp.asarray(advantage), jnp.asarray(0.2)
    )
    assert actual == pytest.approx(gain, rel=1e-5)


def test_the_learning_rate_falls_linearly_between_the_ends() -> None:
    hyper = Hyperparameters(*map(jnp.asarray, (1.0, 0.1, 0.9, 0.9, 0.2, 10.0, 20.0)))
    rates = [float(hyper.rate(jnp.asarray(i))) for i in (5, 10, 15, 20, 30)]
    np.testing.assert_allclose(rates, [1.0, 1.0, 0.55, 0.1, 0.1], rtol=1e-6)


@pytest.fixture(scope="module")
def untaught() -> SpecialistAgent:
    """An agent that has acted for an update and learned nothing; its priors are of that update."""
    settings = {"momentum_selector": 0.0, "momentum_expert": 0.0, "learning_rate": 1e-9}
    return ring_agent(2, **settings).learn(512)


def test_priors_are_the_marginals_of_what_was_done(untaught: SpecialistAgent) -> None:
    state = untaught.state_
    # Observations were not normalised before they were seen.
    policy = eqx.tree_at(lambda p: p.observations, state.policy, Moments.start(4))
    decision = policy.decide(state.visited.observation)
    selector, experts = (np.asarray(prior.family.probs) for prior in state.priors.stages)
    np.testing.assert_allclose(selector, decision.selections[0].probs.mean(axis=0), atol=1e-5)
    for m in range(2):
        acted = np.asarray(state.visited.expert) == m
        assert acted.any()
        mean = np.asarray(decision.answers.probs)[acted, m].mean(axis=0)
        np.testing.assert_allclose(experts[m], mean, atol=1e-5)


def test_a_constant_final_learning_rate_is_kept() -> None:
    hyper = ring_agent(1, learning_rate=0.01, final_learning_rate=0.01).state_.hyper
    rates = [float(hyper.rate(jnp.asarray(i))) for i in (0, 1, 5)]
    np.testing.assert_allclose(rates, 0.01, rtol=1e-6)
