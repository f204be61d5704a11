"""One step of the paper's agents, computed by hand."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special

from pinfactory import paper
from pinfactory.core.families import Categorical
from pinfactory.rl.envs import DoublePendulum, Pendulum
from pinfactory.rl.meta.losses import expert_loss, selector_gradient_loss
from pinfactory.rl.meta.state import SelectorReplay
from pinfactory.rl.policy import ActionSample, HierarchicalAction
from pinfactory.rl.rollout import EpisodeStatistics, Trajectory
from pinfactory.rl.values import Experience
from point_task import point_tasks

STEPS, GAMMA, BETAS, HIDDEN = 6, 0.9, (5.0, 2.0), (4, 3)


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
    hidden = HIDDEN if expert == "mlp" else ()
    agent = paper.agent(
        Pendulum(),
        2,
        expert,
        gamma=GAMMA,
        beta_selector=BETAS[0],
        beta_expert=BETAS[1],
        expert_hidden=HIDDEN,
        selector_hidden=hidden,
        critic_hidden=hidden,
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


Layers = list[tuple[np.ndarray, np.ndarray]]


def layers_of(network) -> Layers:
    """Return weights and biases of linear maps, in double precision."""
    return [
        (np.asarray(layer.weight, float), np.asarray(layer.bias, float))
        for layer in network
        if hasattr(layer, "weight")
    ]


def outputs_of(layers: Layers, x: np.ndarray) -> np.ndarray:
    """Return the outputs of networks with tanh between linear maps; stacked ones side by side."""
    values = x if layers[0][0].ndim == 2 else x[:, None]
    for n, (weight, bias) in enumerate(layers):
        values = np.tanh(values) if n else values
        values = (weight @ values[..., None])[..., 0] + bias
    return values


def log_normal(a, mean, scale):
    return -0.5 * ((a - mean) / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)


class ByHand:
    """The same step in NumPy, from the equations of Section 3.3 and networks written out."""

    def __init__(self, state, episode: dict[str, np.ndarray], critic: str) -> None:
        hierarchy, critics = state.policy.hierarchy, state.critics
        self.selector = layers_of(hierarchy.selector.layers)
        self.experts = layers_of(hierarchy.experts.network.layers)
        self.critics = [*layers_of(critics.body.layers), *layers_of([critics.head])]
        self.x = episode["x"].astype(float)
        self.m, self.a = episode["expert"], episode["action"].astype(float)[:, 0]
        m, rows = self.m, np.arange(STEPS)
        log_p = self.log_selection(self.selector)
        prior = np.exp(log_p).mean(axis=0)
        mean, scale = self.answers(self.experts)
        log_prior = np.zeros(STEPS)
        for expert in range(2):
            own = m == expert
            centre = mean[own, expert].mean()
            variance = (scale[own, expert] ** 2 + (mean[own, expert] - centre) ** 2).mean()
            log_prior[own] = log_normal(self.a[own], centre, np.sqrt(variance))
        f = episode["reward"] - (self.log_density(self.experts) - log_prior) / BETAS[1]
        value = outputs_of(self.critics, self.x)[..., 0]
        value[-1] = 0.0  # the episode has ended
        self.advantage_expert = f + GAMMA * value[1 + rows, 1 + m] - value[rows, 1 + m]
        own = f + GAMMA * value[1:, 0] - value[:STEPS, 0]
        chosen = self.advantage_expert if critic == "printed" else own
        self.advantage_selector = chosen - (log_p[rows, m] - np.log(prior[m])) / BETAS[0]
        self.target = np.array([sum(GAMMA**k * f[t + k] for k in range(STEPS - t)) for t in rows])

    def log_selection(self, selector: Layers) -> np.ndarray:
        return scipy.special.log_softmax(outputs_of(selector, self.x[:STEPS]), axis=1)

    def answers(self, experts: Layers) -> tuple[np.ndarray, np.ndarray]:
        outputs = outputs_of(experts, self.x[:STEPS])
        return outputs[..., 0], np.exp(outputs[..., 1])

    def log_density(self, experts: Layers) -> np.ndarray:
        mean, scale = (part[np.arange(STEPS), self.m] for part in self.answers(experts))
        return log_normal(self.a, mean, scale)

    def losses(self) -> list[tuple[Layers, Callable[[Layers], float]]]:
        """Return what selector, experts and critics descend, with the advantages held fixed."""
        rows = np.arange(STEPS)

        def of_selector(layers: Layers) -> float:
            return -np.mean(self.advantage_selector * self.log_selection(layers)[rows, self.m])

        def of_experts(layers: Layers) -> float:
            return -np.mean(self.advantage_expert * self.log_density(layers))

        def of_critics(layers: Layers) -> float:  # half of the two critics' mean error, ½ (V − F)²
            value = outputs_of(layers, self.x[:STEPS])[..., 0]
            errors = (value[:, 0] - self.target) ** 2 + (value[rows, 1 + self.m] - self.target) ** 2
            return 0.25 * np.mean(errors)

        return [
            (self.selector, of_selector),
            (self.experts, of_experts),
            (self.critics, of_critics),
        ]


def slopes(loss: Callable[[Layers], float], layers: Layers) -> Layers:
    """Return the gradient of a loss by central differences; the layers end as they were."""

    def slope(array: np.ndarray) -> np.ndarray:
        found, h = np.zeros_like(array), 1e-5
        for place in np.ndindex(*array.shape):
            before = array[place]
            array[place] = before + h
            above = loss(layers)
            array[place] = before - h
            found[place] = (above - loss(layers)) / (2 * h)
            array[place] = before
        return found

    return [(slope(weight), slope(bias)) for weight, bias in layers]


@pytest.mark.parametrize("critic", ["paper", "printed"])
@pytest.mark.parametrize("expert", ["linear", "mlp"])
def test_the_gradient_of_a_step_is_that_of_the_equations(critic: str, expert: str, episode) -> None:
    ppo, state = build(critic, expert)
    data = (trajectory_of(episode), EpisodeStatistics.start(1))
    prepared, batch, _ = eqx.filter_jit(ppo.prepare)(state, *data)
    parts = (state.policy.hierarchy, state.critics)
    slope = eqx.filter_jit(eqx.filter_grad(lambda p: ppo.loss(p, prepared, batch)[0]))
    hierarchy, critics = slope(parts)
    found = [
        layers_of(hierarchy.selector.layers),
        layers_of(hierarchy.experts.network.layers),
        [*layers_of(critics.body.layers), *layers_of([critics.head])],
    ]
    for network, (layers, loss) in zip(found, ByHand(state, episode, critic).losses(), strict=True):
        for layer, wanted in zip(network, slopes(loss, layers), strict=True):
            for one, other in zip(layer, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


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
    narrow = {"expert_hidden": (4, 3), "critic_hidden": (3, 4), "selector_units": 5}
    agent = paper.meta_agent(point_tasks(), 2, n_tasks=3, n_steps=4, seed=1, **narrow)
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


def relu_outputs(layers: Layers, m: int, x: np.ndarray) -> np.ndarray:
    """Return the outputs of the m-th of several stacked networks with ReLU units."""
    for n, (weight, bias) in enumerate(layers):
        x = np.maximum(x, 0.0) if n else x
        x = x @ weight[m].T + bias[m]
    return x


@pytest.fixture(scope="module")
def played(meta_state):
    """Four steps in three tasks: one episode ends, one is cut short, one goes on."""
    rng, steps, n = np.random.default_rng(1), 4, 3
    rows = rng.normal(size=(steps + 1, n, 1)).astype(np.float32)
    x, expert = jnp.asarray(rows), np.array([0, 1, 0])
    experts = meta_state.policy.hierarchy.experts
    answer = eqx.filter_jit(
        lambda: eqx.filter_vmap(
            lambda own, x: jax.vmap(own)(x), in_axes=(eqx.if_array(0), 1), out_axes=1
        )(pick_all(experts, expert), x[:-1])
    )()
    action = jnp.asarray(rng.normal(size=(steps, n, 1)), jnp.float32)
    sample = ActionSample(action, answer.log_prob(action), answer)
    reward = jnp.asarray(rng.normal(size=(steps, n)), jnp.float32)
    terminated = jnp.zeros((steps, n), bool).at[1, 0].set(True)
    done = terminated.at[2, 1].set(True)
    return Trajectory(x[:-1], sample, reward, terminated, done, x[1:], jnp.ones((steps, n))), expert


def pick_all(tree, index):
    return jax.tree.map(lambda leaf: leaf[jnp.asarray(index)] if eqx.is_array(leaf) else leaf, tree)


def test_algorithm_2_sums_the_free_energy_that_follows(meta_state, played) -> None:
    trajectory, expert = played
    learner = paper.meta_agent(point_tasks(), 2, n_tasks=1, n_steps=4, selector_units=5)._learner
    # Priors N(0.2, 0.8²) and N(−0.1, 1.5²) that have seen something.
    centre, width = np.array([0.2, -0.1]), np.array([0.8, 1.5])
    prior = meta_state.policy.priors.stages[1]
    family = type(prior.family)(jnp.asarray(centre[:, None]), jnp.log(jnp.asarray(width))[:, None])
    family = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), family)
    state = eqx.tree_at(
        lambda s: (s.policy.priors.stages[1].family, s.policy.priors.stages[1].mass),
        meta_state,
        (family, jnp.ones(2)),
    )
    _, found = eqx.filter_jit(learner._prepare)(state, trajectory, jnp.asarray(expert))
    layers = layers_of(state.policy.hierarchy.experts.network.layers)
    critics = [*layers_of(state.critics.body.layers), *layers_of([state.critics.head])]
    x, after = (
        np.asarray(part, float) for part in (trajectory.observation, trajectory.next_observation)
    )
    action, reward = (np.asarray(p, float) for p in (trajectory.decision.action, trajectory.reward))
    for task, m in enumerate(expert):
        mean, log_scale = relu_outputs(layers, m, x[:, task]).T
        log_p = log_normal(action[:, task, 0], mean, np.exp(log_scale))
        f = reward[:, task] - (log_p - log_normal(action[:, task, 0], centre[m], width[m])) / 2.5
        value, later = (relu_outputs(critics, m, rows[:, task])[:, 0] for rows in (x, after))
        later = np.where(np.asarray(trajectory.terminated)[:, task], 0.0, later)
        np.testing.assert_allclose(
            found.batch.advantage[:, task], f + 0.99 * later - value, rtol=1e-4, atol=1e-5
        )
        total, ends = later[-1], np.asarray(trajectory.done)[:, task]
        for t in reversed(range(4)):  # the critic stands for what follows the last step
            total = f[t] + 0.99 * (later[t] if ends[t] else total)
            np.testing.assert_allclose(found.batch.target[t, task, 0], total, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.free_energy[task, 0], total, rtol=1e-4, atol=1e-5)


def test_its_experts_follow_the_plain_policy_gradient(meta_state, played) -> None:
    trajectory, expert = played
    rng, sample = np.random.default_rng(2), trajectory.decision
    advantage, target = rng.normal(size=(4, 3)), 3.0 * rng.normal(size=(4, 3))
    batch = Experience(
        trajectory.observation,
        sample,
        jnp.asarray(advantage, jnp.float32),
        jnp.asarray(target, jnp.float32)[..., None],
    )
    parts = (meta_state.policy.hierarchy.experts, meta_state.critics)
    slope = eqx.filter_grad(
        lambda p: expert_loss(p, batch, jnp.asarray(expert), meta_state, plain=True), has_aux=True
    )
    (experts, critics), _ = eqx.filter_jit(slope)(parts)
    x, action = np.asarray(batch.x, float), np.asarray(sample.action, float)

    def of_experts(layers: Layers) -> float:  # − mean of log p(a|x, m) A
        total = 0.0
        for task, m in enumerate(expert):
            mean, log_scale = relu_outputs(layers, m, x[:, task]).T
            log_p = log_normal(action[:, task, 0], mean, np.exp(log_scale))
            total -= np.sum(log_p * advantage[:, task]) / 12
        return total

    def of_critics(layers: Layers) -> float:  # the mean of Huber's loss
        total = 0.0
        for task, m in enumerate(expert):
            error = np.abs(relu_outputs(layers, m, x[:, task])[:, 0] - target[:, task])
            total += np.sum(np.where(error < 1.0, 0.5 * error**2, error - 0.5)) / 12
        return total

    def stacked(network) -> Layers:
        return layers_of(getattr(network, "layers", network))

    for found, layers, loss in (
        (stacked(experts.network), stacked(parts[0].network), of_experts),
        (
            [*stacked(critics.body), *stacked([critics.head])],
            [*stacked(parts[1].body), *stacked([parts[1].head])],
            of_critics,
        ),
    ):
        for layer, wanted in zip(found, slopes(loss, layers), strict=True):
            for one, other in zip(layer, wanted, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_actions_of_algorithm_2_are_gaussian_and_its_experts_begin_at_random() -> None:
    state = paper.meta_agent(point_tasks(), 2, selector_units=5, n_tasks=1).state_
    answer = state.policy.actions(jnp.array([0.2, -7.0]))
    assert (float(answer.mean[0]), float(answer.log_scale[0])) == pytest.approx((0.2, -7.0))
    np.testing.assert_allclose(state.policy.actions.to_env(jnp.array([0.5])), [0.5])
    # Uniform in ±1/√64, in the last layer as in all others.
    weights = [weight for weight, _ in layers_of(state.policy.hierarchy.experts.network.layers)]
    assert [weight.shape[1:] for weight in weights] == [(64, 1), (64, 64), (2, 64)]
    assert 0.9 / 8 < np.abs(weights[-1]).max() <= 1 / 8


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
