import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinfactory import networks
from pinfactory.core.constraints import Fixed
from pinfactory.rl import SpecialistAgent, envs
from pinfactory.rl.critics import Critics
from pinfactory.rl.normalise import Moments
from pinfactory.rl.ppo import clipped_surrogate, policy_gradient_surrogate, random_orders
from pinfactory.rl.state import Hyperparameters


def test_shuffles_are_permutations_and_differ() -> None:
    orders = np.asarray(random_orders(jax.random.key(0), 5, 1000))
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


def test_plain_gain_has_the_policy_gradient() -> None:
    slope = jax.grad(
        lambda p: policy_gradient_surrogate(
            jnp.log(p), jnp.zeros(()), jnp.asarray(3.0), jnp.asarray(0.2)
        )
    )
    assert slope(jnp.asarray(0.5)) == pytest.approx(3.0 / 0.5)


def test_rescaled_critics_give_rescaled_values() -> None:
    critics = Critics.build(
        jax.random.key(0), 3, lambda k: networks.mlp(2, 1, (4,), networks.tanh, key=k)
    )
    x = jnp.array([[0.3, -1.0], [2.0, 0.1]])
    assert critics(x).shape == (2, 3)
    np.testing.assert_allclose(critics.rescaled(jnp.asarray(0.25))(x), 0.25 * critics(x), rtol=1e-5)


def test_the_learning_rate_falls_linearly_between_the_ends() -> None:
    hyper = Hyperparameters(*map(jnp.asarray, (1.0, 0.1, 0.9, 0.9, 0.2, 10.0, 20.0)))
    rates = [float(hyper.rate(jnp.asarray(i))) for i in (5, 10, 15, 20, 30)]
    np.testing.assert_allclose(rates, [1.0, 1.0, 0.55, 0.1, 0.1], rtol=1e-6)


class Guess(envs.Env[envs.PendulumParams]):
    """One step: name the state, one of four, for a reward of `max_torque`."""

    max_steps: int | None = eqx.field(default=1, static=True)

    @property
    def observation_space(self) -> envs.Box:
        return envs.Box((0.0,) * 4, (1.0,) * 4)

    @property
    def action_space(self) -> envs.Discrete:
        return envs.Discrete(4)

    @property
    def step_seconds(self) -> float:
        return 1.0

    def default_params(self) -> envs.PendulumParams:
        return envs.PendulumParams()

    def reset(self, key, params):
        state = jax.random.randint(key, (), 0, 4)
        return state, jax.nn.one_hot(state, 4)

    def step(self, key, state, action, params):
        reward = params.max_torque * (action == state)
        yes = jnp.ones((), bool)
        return state, envs.Transition(jax.nn.one_hot(state, 4), reward, yes, ~yes)


def guesser(
    n_experts: int, reward: float, env: envs.Env | None = None, **settings
) -> SpecialistAgent:
    defaults = {
        "gamma": 0.0,
        "gae_lambda": 0.0,
        "n_envs": 64,
        "n_steps": 4,
        "batch_size": 64,
        "n_epochs": 4,
        "learning_rate": 0.01,
        "selector_hidden": (),
        "critic_hidden": (8,),
        "capacity": 2,
        "params": envs.PendulumParams(max_torque=reward),
    }
    return SpecialistAgent(env or Guess(), n_experts, **defaults | settings)


@pytest.mark.parametrize("beta", [0.3, 0.7])
def test_one_expert_finds_the_best_policy_for_its_resources(beta: float) -> None:
    # By symmetry p(a) is uniform, and p(a|x) ∝ exp(β U); U is in deviations of the return.
    agent = guesser(1, 1.0, beta_expert=beta, momentum_selector=0.99, momentum_expert=0.99).learn(
        60_000
    )
    policy = np.exp([agent.log_prob(np.eye(4), np.full(4, a)) for a in range(4)]).T
    utility = beta / float(np.sqrt(agent.state_.scale.variance))
    expected = np.where(np.eye(4) > 0, np.exp(utility), 1.0) / (np.exp(utility) + 3.0)
    np.testing.assert_allclose(policy, expected, atol=0.06)
    bits = np.sum(expected[0] * np.log2(4.0 * expected[0]))
    assert agent.information_.experts == pytest.approx(bits, abs=0.12)


def test_learning_does_not_depend_on_the_scale_of_the_reward() -> None:
    small, large = (guesser(2, reward).learn(4000) for reward in (1.0, 2.0**10))
    for one, other in zip(
        jax.tree.leaves(eqx.filter(small.state_.policy, eqx.is_inexact_array)),
        jax.tree.leaves(eqx.filter(large.state_.policy, eqx.is_inexact_array)),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_priors_are_the_marginals_of_what_was_done() -> None:
    settings = {"momentum_selector": 0.0, "momentum_expert": 0.0, "learning_rate": 1e-9}
    state = guesser(2, 1.0, **settings).learn(256).state_
    # Nothing was learned, and observations were not normalised before they were seen.
    policy = eqx.tree_at(lambda p: p.observations, state.policy, Moments.start(4))
    decision = policy.decide(state.visited.observation)
    selector, experts = (np.asarray(prior.family.probs) for prior in state.priors.stages)
    np.testing.assert_allclose(selector, decision.selections[0].probs.mean(axis=0), atol=1e-5)
    for m in range(2):
        acted = np.asarray(state.visited.expert) == m
        assert acted.any()
        mean = np.asarray(decision.answers.probs)[acted, m].mean(axis=0)
        np.testing.assert_allclose(experts[m], mean, atol=1e-5)


def test_a_budget_in_bits_is_met() -> None:
    agent = guesser(1, 1.0, expert_bits=0.5, momentum_selector=0.99, momentum_expert=0.99).learn(
        120_000
    )
    assert agent.information_.experts == pytest.approx(0.5, abs=0.1)
    assert not isinstance(agent.state_.resources[1], Fixed)


@pytest.mark.parametrize("settings", [{"critic": "paper"}, {"update": "plain", "n_steps": 1}])
def test_critics_of_their_own_and_plain_updates_learn_too(settings: dict) -> None:
    agent = guesser(2, 1.0, beta_selector=50.0, beta_expert=50.0, **settings).learn(60_000)
    for episodes in agent.evaluate(100):
        assert episodes.mean > 0.8


class Fork(Guess):
    """Two steps: action 0 leads to a guess among three for a reward of 1, others to 0.5 at once.

    Observations are one-hot: the fork, three states to guess, and the sure reward.
    """

    max_steps: int | None = eqx.field(default=2, static=True)

    @property
    def observation_space(self) -> envs.Box:
        return envs.Box((0.0,) * 5, (1.0,) * 5)

    @property
    def action_space(self) -> envs.Discrete:
        return envs.Discrete(3)

    def reset(self, key, params):
        return jnp.asarray(0), jax.nn.one_hot(0, 5)

    def step(self, key, state, action, params):
        guess = 1 + jax.random.randint(key, (), 0, 3)
        at_fork = state == 0
        reached = jnp.where(action == 0, guess, 4)
        right = jnp.where(state == 4, 0.5, (action == state - 1).astype(float))
        reward = jnp.where(at_fork, 0.0, right)
        following = jnp.where(at_fork, reached, state)
        no = jnp.zeros((), bool)
        return following, envs.Transition(jax.nn.one_hot(following, 5), reward, ~at_fork, no)


def best_at_fork(
    beta: float, gamma: float, deviation: float, later_costs: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Return π(a|fork) and π(a|guess 0) of the highest free energy, by fixed-point iteration.

    V(s) = k log Σ p(a) exp(Q(s, a) / k) with k = (1 − γ)/β, and p(a) the mean of π over states.
    """
    k, p = (1.0 - gamma) / beta, np.full(3, 1 / 3)
    for _ in range(500):
        q_guess = np.eye(3) / deviation
        v_guess = k * np.log(np.exp(q_guess / k) @ p)
        guess = p * np.exp(q_guess / k) / (np.exp(q_guess / k) @ p)[:, None]
        value = v_guess.mean() if later_costs else np.diag(guess).mean() / deviation
        q_fork = gamma * np.array([value, 0.5 / deviation, 0.5 / deviation])
        fork = p * np.exp(q_fork / k) / (np.exp(q_fork / k) @ p)
        # Half of all states are the fork, and at the sure reward nothing but p(a) pays.
        p = 0.5 * fork + 0.5 * (fork[0] * guess.mean(axis=0) + (1.0 - fork[0]) * p)
    return fork, guess[0]


@pytest.mark.parametrize(
    ("settings", "tolerance"),
    [({}, 0.05), ({"critic": "paper"}, 0.05), ({"update": "plain"}, 0.08)],
)
def test_decisions_count_the_information_that_later_steps_will_cost(
    settings: dict, tolerance: float
) -> None:
    beta, gamma = 0.5, 0.5
    momenta = {"momentum_selector": 0.99, "momentum_expert": 0.99}
    agent = guesser(
        1, 1.0, env=Fork(), gamma=gamma, gae_lambda=0.9, beta_expert=beta, **momenta, **settings
    ).learn(120_000)
    deviation = float(np.sqrt(agent.state_.scale.variance))
    fork, guess = best_at_fork(beta, gamma, deviation)
    found = np.exp([agent.log_prob(np.eye(5)[:2], np.full(2, a)) for a in range(3)]).T
    np.testing.assert_allclose(found[0], fork, atol=tolerance)
    np.testing.assert_allclose(found[1], guess, atol=tolerance)
    # That is far from what would be best if later steps cost nothing.
    assert best_at_fork(beta, gamma, deviation, later_costs=False)[0][0] > fork[0] + 2 * tolerance
