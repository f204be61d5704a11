"""Plain mixtures by Adam, with or without a load-balancing loss, and a network without experts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory import networks
from pinfactory.core.learning import Learner, State, scan

from .mixture import LEAST_DEVIATION, ControlMixture


class _Weights(eqx.Module):
    gate: networks.Network
    expert: Float[Array, "experts inputs outputs"]
    log_deviation: Float[Array, " experts"]

    def gates(self, x: Float[Array, "n inputs"]) -> Float[Array, "n experts"]:
        return jax.nn.log_softmax(jax.vmap(self.gate)(x))

    def answers(self, x: Float[Array, "n inputs"]) -> Float[Array, "n experts outputs"]:
        return jnp.einsum("ni,mik->nmk", x, self.expert)


class _Network(eqx.Module):
    """The same of one expert that is a network."""

    network: networks.Network
    log_deviation: Float[Array, " 1"]

    def gates(self, x: Float[Array, "n inputs"]) -> Float[Array, "n 1"]:
        return jnp.zeros((len(x), 1))

    def answers(self, x: Float[Array, "n inputs"]) -> Float[Array, "n 1 outputs"]:
        return jax.vmap(self.network)(x)[:, None]


class SoftmaxMixture(ControlMixture):
    """A softmax mixture with the network of a committee's selector, trained by Adam.

    The loss is −mean log Σₘ p(m|x) p(y|x, m) + balance · M · Σₘ fₘ Pₘ, where fₘ is the share of
    rows that expert m gets most of and Pₘ its mean gate (Fedus, Zoph & Shazeer 2022, equation 4).
    A tenth of the rows decides when to stop.

    Parameters
    ----------
    n_experts, classify, seed
        As of `ControlMixture`.
    balance
        The weight of the load-balancing loss.
    """

    def __init__(self, n_experts: int, classify: bool, seed: int, balance: float = 0.0) -> None:
        super().__init__(n_experts, classify, seed)
        self.balance = balance

    def _start(self, n_columns: int, n_outputs: int, key: Array) -> _Weights | _Network:
        gate, expert = jax.random.split(key)
        return _Weights(
            networks.mlp(n_columns, self.n_experts, (10, 10), networks.tanh, key=gate),
            0.1 * jax.random.normal(expert, (self.n_experts, n_columns, n_outputs)),
            jnp.zeros(self.n_experts),
        )

    def _learn(self, x: np.ndarray, target: np.ndarray) -> None:
        start, rows = jax.random.split(jax.random.key(self.seed))
        weights = self._start(x.shape[1], len(self.classes_) if self.classify else 1, start)
        # As many for every seed, so that all seeds share a program.
        held = np.random.default_rng(self.seed).permutation(len(x)) < len(x) // 10
        judged, learned = (
            (jnp.asarray(x[part]), jnp.asarray(target[part])) for part in (held, ~held)
        )
        learner = Learner(_BalancedLikelihood(jnp.asarray(self.balance)))
        state = learner.init(weights, learning_rate=3e-3)
        lowest = np.inf
        for key in jax.random.split(rows, 20):
            state = _train(learner, state, learned, key)
            if (loss := float(_loss(state.model, judged, 0.0))) < lowest:
                lowest, self.weights_ = loss, state.model

    def _log_gates(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.weights_.gates(jnp.asarray(x)), float)

    def _answers(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        answers = self.weights_.answers(jnp.asarray(x))
        answers = jax.nn.log_softmax(answers) if self.classify else answers[..., 0]
        deviations = LEAST_DEVIATION + jnp.exp(self.weights_.log_deviation)
        return np.asarray(answers, float), np.asarray(deviations, float)


class DenseNetwork(SoftmaxMixture):
    """One network with a hidden layer, with as many weights as a mixture, trained the same way.

    Parameters
    ----------
    n_experts, classify, seed
        As of the mixture.
    """

    def _start(self, n_columns: int, n_outputs: int, key: Array) -> _Network:
        mixture = eqx.filter(super()._start(n_columns, n_outputs, key), eqx.is_inexact_array)
        n_weights = sum(leaf.size for leaf in jax.tree.leaves(mixture))
        width = round((n_weights - n_outputs - 1) / (n_columns + 1 + n_outputs))
        network = networks.mlp(n_columns, n_outputs, (width,), networks.tanh, key=key)
        return _Network(network, jnp.zeros(1))


_STEPS, _BATCH = 250, 128
_Rows = tuple[Array, Array]


class _BalancedLikelihood(eqx.Module):
    """The loss of `SoftmaxMixture`."""

    balance: Float[Array, ""]

    def __call__(
        self, model: _Weights | _Network, state: State, batch: _Rows, key: Array
    ) -> tuple[Float[Array, ""], tuple[None, None]]:
        return _loss(model, batch, self.balance), (None, None)


@eqx.filter_jit
def _train(learner: Learner, state: State, rows: _Rows, key: Array) -> State:
    def step(state: State, key: Array) -> tuple[State, None]:
        chosen = jax.random.randint(key, (_BATCH,), 0, len(rows[0]))
        return learner.step(key, state, (rows[0][chosen], rows[1][chosen]))[0], None

    return scan(step, state, jax.random.split(key, _STEPS))[0]


@eqx.filter_jit
def _loss(
    weights: _Weights | _Network, rows: _Rows, balance: Float[Array, ""] | float
) -> Float[Array, ""]:
    x, target = rows
    log_gates, answers = weights.gates(x), weights.answers(x)
    if jnp.issubdtype(target.dtype, jnp.integer):
        log_probs = jax.nn.log_softmax(answers)
        densities = jnp.take_along_axis(log_probs, target[:, None, None], axis=2)[:, :, 0]
    else:
        deviations = LEAST_DEVIATION + jnp.exp(weights.log_deviation)
        densities = jax.scipy.stats.norm.logpdf(target[:, None], answers[..., 0], deviations)
    n_experts = log_gates.shape[1]
    first = jax.nn.one_hot(jnp.argmax(log_gates, axis=1), n_experts).mean(axis=0)
    load = n_experts * jnp.sum(first * jnp.exp(log_gates).mean(axis=0))
    likelihood = jax.scipy.special.logsumexp(log_gates + densities, axis=1).mean()
    return balance * load - likelihood
