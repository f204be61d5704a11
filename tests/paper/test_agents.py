"""One step of the paper's agents, computed by hand."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pinfactory import paper
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import pick
from pinfactory.rl.envs import DoublePendulum, Pendulum
from pinfactory.rl.meta.losses import expert_loss, selector_gradient_loss
from pinfactory.rl.meta.state import SelectorReplay
from pinfactory.rl.policy import ActionSample, HierarchicalAction
from pinfactory.rl.rollout import EpisodeStatistics, Trajectory
from pinfactory.rl.values import Experience
from point_task import point_tasks

STEPS, GAMMA, BETAS = 6, 0.9, (5.0, 2.0)


@pytest.fixture(scope="module")
def episode() -> dict[str, np.ndarray]:
    """Six steps in one environment, the last of which ends the episode."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=(STEPS + 1, 3)).astype(np.float32),
        "expert": np.array([0, 1, 1, 0, 1, 0], np.int32),
        "action": rng.normal(size=(STEPS, 1)).astype(np.float32),
        "reward": rng.normal(size=STEPS).astype(np.float32),
    }


def build(critic: str, expert: str = "linear"):
    agent = paper.agent(
        Pendulum(),
        2,
        expert,
        gamma=GAMMA,
        beta_selector=BETAS[0],
        beta_expert=BETAS[1],
        selector_hidden=(),
        critic_hidden=(),
        n_steps=STEPS,
        batch_size=STEPS,
        critic=critic,
    )
    return agent._ppo, agent.state_


def trajectory_of(episode: dict[str, np.ndarray]) -> Trajectory:
    x, zeros = jnp.asarray(episode["x"])[:, None], jnp.zeros((STEPS, 1))
    last = jnp.arange(STEPS)[:, None] == STEPS - 1
    decision = HierarchicalAction(
        jnp.asarray(episode["expert"])[:, None], jnp.ones((STEPS, 1), bool),
        jnp.asarray(episode["action"])[:, None], zeros, zeros,
    )  # fmt: skip
    reward = jnp.asarray(episode["reward"])[:, None]
    return Trajectory(x[:-1], decision, reward, last, last, x[1:], jnp.ones((STEPS, 1)))


class ByHand:
    """The same step in NumPy, from the equations of Section 3.3 and linear maps written out."""

    def __init__(self, state, episode: dict[str, np.ndarray], critic: str) -> None:
        weights = [np.asarray(leaf, float) for leaf in jax.tree.leaves(
            eqx.filter((state.policy.hierarchy.selector, state.policy.hierarchy.experts.network,
                        state.critics.head), eqx.is_inexact_array))]  # fmt: skip
        (self.w_sel, self.b_sel, self.w_exp, self.b_exp, self.w_v, self.b_v) = weights
        self.x = episode["x"].astype(float)
        self.m, self.a = episode["expert"], episode["action"].astype(float)[:, 0]
        x, m, rows = self.x[:STEPS], self.m, np.arange(STEPS)
        self.p_m = scipy.special.softmax(x @ self.w_sel.T + self.b_sel, axis=1)
        outputs = np.einsum("mkx,tx->tmk", self.w_exp, x) + self.b_exp
        self.mean, self.scale = outputs[..., 0], np.exp(outputs[..., 1])
        prior = self.p_m.mean(axis=0)
        log_density = self.log_normal(self.a, self.mean[rows, m], self.scale[rows, m])
        log_prior = np.zeros(STEPS)
        for expert in range(2):
            own = m == expert
            centre = self.mean[own, expert].mean()
            variance = (
                self.scale[own, expert] ** 2 + (self.mean[own, expert] - centre) ** 2
            ).mean()
            log_prior[own] = self.log_normal(self.a[own], centre, np.sqrt(variance))
        f = episode["reward"] - (log_density - log_prior) / BETAS[1]
        value = np.einsum("ckx,tx->tc", self.w_v, self.x) + self.b_v[:, 0]
        value[-1] = 0.0  # the episode has ended
        self.advantage_expert = f + GAMMA * value[1 + rows, 1 + m] - value[rows, 1 + m]
        own = f + GAMMA * value[1:, 0] - value[:STEPS, 0]
        chosen = self.advantage_expert if critic == "printed" else own
        self.advantage_selector = chosen - np.log(self.p_m[rows, m] / prior[m]) / BETAS[0]
        self.target = np.array([sum(GAMMA**k * f[t + k] for k in range(STEPS - t)) for t in rows])
        self.value = value

    @staticmethod
    def log_normal(a, mean, scale):
        return -0.5 * ((a - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)

    def gradients(self) -> tuple[np.ndarray, ...]:
        """Return the descent directions of selector, experts and critics: weights alone."""
        x, m, rows = self.x[:STEPS], self.m, np.arange(STEPS)
        score = np.eye(2)[m] - self.p_m
        selector = -(self.advantage_selector[:, None] * score).T @ x / STEPS
        experts, critics = np.zeros_like(self.w_exp), np.zeros_like(self.w_v)
        z = (self.a - self.mean[rows, m]) / self.scale[rows, m]
        for t in rows:
            a_t = self.advantage_expert[t]
            experts[m[t], 0] -= a_t * z[t] / self.scale[t, m[t]] * x[t] / STEPS
            experts[m[t], 1] -= a_t * (z[t] ** 2 - 1.0) * x[t] / STEPS
            for c in (0, 1 + m[t]):  # each is half of the critics' mean error, ½ (V − F)²
                critics[c, 0] += 0.5 * (self.value[t, c] - self.target[t]) * x[t] / STEPS
        return selector, experts, critics


@pytest.mark.parametrize("critic", ["paper", "printed"])
def test_the_gradient_of_a_step_is_that_of_the_equations(critic: str, episode) -> None:
    ppo, state = build(critic)
    data = (trajectory_of(episode), EpisodeStatistics.start(1))
    prepared, batch, _ = eqx.filter_jit(ppo.prepare)(state, *data)
    parts = (state.policy.hierarchy, state.critics)
    slope = eqx.filter_jit(eqx.filter_grad(lambda p: ppo.loss(p, prepared, batch)[0]))
    hierarchy, critics = slope(parts)
    expected = ByHand(state, episode, critic).gradients()
    found = (hierarchy.selector.layers[0], hierarchy.experts.network.layers[0], critics.head)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.weight, other, rtol=1e-3, atol=1e-5)


def test_the_first_step_of_adam_is_as_long_as_its_rate(episode) -> None:
    # Nothing is clipped or annealed: every weight with a gradient moves by 3e-4.
    ppo, state = build("paper")
    data = (trajectory_of(episode), EpisodeStatistics.start(1))
    new, _ = eqx.filter_jit(ppo.step)(jax.random.key(0), state, data)
    before, after = (s.policy.hierarchy.selector.layers[0].weight for s in (state, new))
    np.testing.assert_allclose(np.abs(after - before), 3e-4, rtol=1e-2)
    assert float(new.policy.observations.mass) == 0.0


def test_actions_are_gaussian_and_the_experts_of_text_and_appendix_are_there() -> None:
    for expert, n_layers in (("linear", 1), ("mlp", 3)):
        agent = paper.agent(DoublePendulum(), 5, expert)
        policy = agent.state_.policy
        arrays = jax.tree.leaves(eqx.filter(policy.hierarchy.experts, eqx.is_inexact_array))
        weights = [leaf for leaf in arrays if leaf.ndim == 3]
        assert len(weights) == n_layers
        assert weights[0].shape[0] == 5
        np.testing.assert_allclose(policy.actions.to_env(jnp.array([[0.5], [3.0]])), [[0.5], [1.0]])
        answer = policy.actions(jnp.array([0.2, -7.0]))
        assert (float(answer.mean[0]), float(answer.log_scale[0])) == pytest.approx((0.2, -7.0))
        assert agent.state_.critics(jnp.zeros((1, 9))).shape == (1, 6, 1)


@pytest.fixture(scope="module")
def meta_state():
    agent = paper.meta_agent(point_tasks(), 2, n_tasks=3, n_steps=4, selector_units=5, seed=1)
    prior = Categorical.from_probs(jnp.array([0.3, 0.7]))
    return eqx.tree_at(lambda s: s.policy.priors.stages[0].family, agent.state_, prior)


def test_the_selector_climbs_the_free_energy_of_whole_trajectories(meta_state) -> None:
    rng = np.random.default_rng(0)
    tau = jnp.asarray(rng.normal(size=(3, 10, 4)), jnp.float32)
    expert, free = jnp.array([0, 1, 1]), np.array([2.0, -1.0, 0.5], np.float32)
    batch = SelectorReplay(tau, expert, jnp.asarray(free)[:, None], jnp.zeros(3))
    selector, critic = meta_state.policy.hierarchy.selector, meta_state.selector_critic
    slope = eqx.filter_grad(lambda parts: selector_gradient_loss(parts, batch, meta_state)[0])
    gradient = eqx.filter_jit(slope)((selector, critic))

    hidden = np.asarray(jax.jit(jax.vmap(selector.remember))(tau), float)
    logits = hidden @ np.asarray(selector.readout.weight).T + np.asarray(selector.readout.bias)
    p = scipy.special.softmax(logits, axis=1)
    memory = np.asarray(jax.jit(jax.vmap(critic.remember))(tau), float)
    value = memory @ np.asarray(critic.readout.weight)[0] + float(critic.readout.bias[0])
    rows = np.arange(3)
    paid = np.log(p[rows, expert] / np.array([0.3, 0.7])[expert]) / 25.0
    advantage = free - value - paid
    expected = -(advantage[:, None] * (np.eye(2)[np.asarray(expert)] - p)).T @ hidden / 3
    np.testing.assert_allclose(gradient[0].readout.weight, expected, rtol=1e-3, atol=1e-6)
    huber = np.clip(value - free, -1.0, 1.0) @ memory / 3
    np.testing.assert_allclose(gradient[1].readout.weight[0], huber, rtol=1e-3, atol=1e-6)


def test_its_experts_follow_the_plain_policy_gradient(meta_state) -> None:
    rng = np.random.default_rng(1)
    x = jnp.asarray(rng.normal(size=(4, 3, 1)), jnp.float32)
    expert, experts = jnp.array([0, 1, 0]), meta_state.policy.hierarchy.experts
    advantage = jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)
    action = jnp.asarray(rng.normal(size=(4, 3, 1)), jnp.float32)
    sample = ActionSample(action, jnp.zeros((4, 3)), None)
    batch = Experience(x, sample, advantage, jnp.zeros((4, 3, 1)))
    parts = (experts, meta_state.critics)
    slope = eqx.filter_grad(
        lambda p: expert_loss(p, batch, expert, meta_state, plain=True), has_aux=True
    )
    gradient, _ = eqx.filter_jit(slope)(parts)
    score = eqx.filter_jit(eqx.filter_grad(lambda e, x, action: e(x).log_prob(action)))
    # One expert, one state at a time: −mean of A ∇ log p(a|x, m).
    for m in range(2):
        total = 0.0
        for t in range(4):
            for task in np.flatnonzero(np.asarray(expert) == m):
                own = score(pick(experts, m), x[t, task], action[t, task]).network.layers[-1].bias
                total = total - np.asarray(own) * float(advantage[t, task]) / 12
        np.testing.assert_allclose(
            gradient[0].network.layers[-1].bias[m], total, rtol=1e-3, atol=1e-6
        )


def test_algorithm_2_probes_with_one_expert_and_tries_no_others() -> None:
    agent = paper.meta_agent(point_tasks(), 2, n_tasks=4, n_steps=20, selector_units=8)
    before = agent.state_
    agent.learn(3)
    state = agent.state_
    assert (state.policy.probe.kind, state.policy.probe.length) == ("expert", 10)
    assert float(state.policy.observations.mass) == float(state.policy.transitions.mass) == 0.0
    assert int(state.policy.hierarchy.available.sum()) == 2
    now, then = (s.policy.hierarchy.selector.readout.weight for s in (state, before))
    assert 0.0 < float(jnp.max(jnp.abs(now - then))) <= 3.1e-4  # three steps of 1e-4, to the end
