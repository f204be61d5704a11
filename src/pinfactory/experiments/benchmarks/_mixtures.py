"""Plain mixtures of linear experts beside which a committee has to show what its prices bring.

All are p(y|x) = Σₘ p(m|x) p(y|x, m). `GradientMixture` climbs the likelihood by Adam, with or
without the load-balancing loss of switch transformers (Fedus, Zoph & Shazeer 2022, equation 4).
`DenseNetwork` is what remains without experts.
`EMMixture` is the hierarchical mixture of Jordan & Jacobs (1994) with its own algorithm.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import expit, logsumexp
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pinfactory import networks
from pinfactory.core.learning import Learner, State

_LEAST_DEVIATION = 0.01  # of standardised targets: an expert must not win by a spike
_PENALTY = 1.0  # of squared weights, as ridge and logistic regression have it by default


class Mixture(BaseEstimator):
    """A mixture of linear experts; columns and numeric targets are standardised.

    Parameters
    ----------
    n_experts
        How many experts there are.
    classify
        Whether targets are classes.
    seed
        Of the start.
    """

    def __init__(self, n_experts: int, classify: bool, seed: int) -> None:
        self.n_experts, self.classify, self.seed = n_experts, classify, seed

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Mixture":
        """Learn gates and experts."""
        self.inputs_ = StandardScaler().fit(X)
        target: np.ndarray
        if self.classify:
            self.classes_, target = np.unique(y, return_inverse=True)
        else:
            self.mean_, self.scale_ = float(np.mean(y)), float(np.std(y))
            target = (y - self.mean_) / self.scale_
        self._learn(self._columns(X), target)
        share = np.exp(self._log_gates(self._columns(X))).mean(axis=0)
        self.effective_experts_ = float(np.exp(-np.sum(share * np.log(share + 1e-12))))
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most probable class, or the mean."""
        if self.classify:
            return self.classes_[self.predict_proba(X).argmax(axis=1)]
        x = self._columns(X)
        answers, _ = self._answers(x)
        return self.mean_ + self.scale_ * np.sum(np.exp(self._log_gates(x)) * answers, axis=1)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes."""
        x = self._columns(X)
        log_probs, _ = self._answers(x)
        return np.exp(logsumexp(self._log_gates(x)[:, :, None] + log_probs, axis=1))

    def score_samples(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return log p(y|x) of every row."""
        x = self._columns(X)
        target = (
            np.searchsorted(self.classes_, y) if self.classify else (y - self.mean_) / self.scale_
        )
        scores = logsumexp(self._log_gates(x) + self._log_densities(x, target), axis=1)
        return scores if self.classify else scores - np.log(self.scale_)

    def _log_densities(self, x: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Return log p(y|x, m) for every row and expert."""
        answers, deviations = self._answers(x)
        if self.classify:
            return np.take_along_axis(answers, target[:, None, None], axis=2)[:, :, 0]
        error = (target[:, None] - answers) / deviations
        return -0.5 * error**2 - np.log(deviations * np.sqrt(2 * np.pi))

    def _columns(self, X: np.ndarray) -> np.ndarray:
        return np.hstack([self.inputs_.transform(X), np.ones((len(X), 1))])

    def _learn(self, x: np.ndarray, target: np.ndarray) -> None:
        raise NotImplementedError

    def _log_gates(self, x: np.ndarray) -> np.ndarray:
        """Return log p(m|x)."""
        raise NotImplementedError

    def _answers(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities, or means, for every row and expert; and deviations."""
        raise NotImplementedError


# -------------------------------------------------------------------------------- by gradient


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


class GradientMixture(Mixture):
    """A softmax mixture with the network of a committee's selector, trained by Adam.

    The loss is −mean log Σₘ p(m|x) p(y|x, m) + balance · M · Σₘ fₘ Pₘ, where fₘ is the share of
    rows that expert m gets most of and Pₘ its mean gate. A tenth of the rows decides when to stop.

    Parameters
    ----------
    n_experts, classify, seed
        As of `Mixture`.
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
        held = np.random.default_rng(self.seed).random(len(x)) < 0.1
        judged, learned = (
            (jnp.asarray(x[part]), jnp.asarray(target[part])) for part in (held, ~held)
        )
        learner = Learner(_BalancedLikelihood(self.balance))
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
        deviations = _LEAST_DEVIATION + jnp.exp(self.weights_.log_deviation)
        return np.asarray(answers, float), np.asarray(deviations, float)


class DenseNetwork(GradientMixture):
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
    """The loss of `GradientMixture`."""

    balance: float = eqx.field(static=True)

    def __call__(
        self, model: _Weights | _Network, state: State, batch: _Rows, key: Array
    ) -> tuple[Float[Array, ""], tuple[None, None]]:
        return _loss(model, batch, self.balance), (None, None)


@eqx.filter_jit
def _train(learner: Learner, state: State, rows: _Rows, key: Array) -> State:
    arrays, static = eqx.partition(state, eqx.is_array)

    def step(arrays: Any, key: Array) -> tuple[Any, None]:
        chosen = jax.random.randint(key, (_BATCH,), 0, len(rows[0]))
        batch = (rows[0][chosen], rows[1][chosen])
        new, _ = learner.step(key, eqx.combine(arrays, static), batch)
        return eqx.filter(new, eqx.is_array), None

    arrays, _ = jax.lax.scan(step, arrays, jax.random.split(key, _STEPS))
    return eqx.combine(arrays, static)


@eqx.filter_jit
def _loss(weights: _Weights | _Network, rows: _Rows, balance: float) -> Float[Array, ""]:
    x, target = rows
    log_gates, answers = weights.gates(x), weights.answers(x)
    if jnp.issubdtype(target.dtype, jnp.integer):
        log_probs = jax.nn.log_softmax(answers)
        densities = jnp.take_along_axis(log_probs, target[:, None, None], axis=2)[:, :, 0]
    else:
        deviations = _LEAST_DEVIATION + jnp.exp(weights.log_deviation)
        densities = jax.scipy.stats.norm.logpdf(target[:, None], answers[..., 0], deviations)
    n_experts = log_gates.shape[1]
    first = jax.nn.one_hot(jnp.argmax(log_gates, axis=1), n_experts).mean(axis=0)
    load = n_experts * jnp.sum(first * jnp.exp(log_gates).mean(axis=0))
    likelihood = jax.scipy.special.logsumexp(log_gates + densities, axis=1).mean()
    return balance * load - likelihood


# -------------------------------------------------------------------------------------- by EM


class EMMixture(Mixture):
    """A hierarchical mixture: a binary tree of logistic gates above linear experts.

    E: h(m) ∝ p(m|x) p(y|x, m). M: every gate is a logistic regression of its right half's share of
    h, every expert a weighted regression. Both are penalised as scikit-learn does by default.
    `n_experts` must be a power of two.
    """

    def _learn(self, x: np.ndarray, target: np.ndarray) -> None:
        random = np.random.default_rng(self.seed)
        self.gates_ = random.normal(size=(self.n_experts - 1, x.shape[1]))
        responsibility = np.exp(self._log_gates(x))
        before = -np.inf
        for _ in range(50):
            self._maximise(x, target, responsibility)
            joint = self._log_gates(x) + self._log_densities(x, target)
            total = logsumexp(joint, axis=1, keepdims=True)
            responsibility = np.exp(joint - total)
            if total.mean() - before < 1e-3:
                break
            before = total.mean()

    def _maximise(self, x: np.ndarray, target: np.ndarray, responsibility: np.ndarray) -> None:
        n, n_experts = responsibility.shape
        for gate in range(n_experts - 1):
            left, right = (
                responsibility[:, self._leaves(2 * gate + k)].sum(axis=1) for k in (1, 2)
            )
            self.gates_[gate] = _logistic(
                np.vstack([x, x]), np.repeat([0, 1], n), np.concatenate([left, right])
            )[0]
        if self.classify:
            experts = np.stack([_logistic(x, target, h) for h in responsibility.T])
            if len(self.classes_) == 2:  # one row of weights, those of the second class
                experts = np.concatenate([np.zeros_like(experts), experts], axis=1)
            self.experts_, self.deviations_ = experts, np.ones(n_experts)
            return
        penalty = _PENALTY * np.eye(x.shape[1])
        self.experts_ = np.stack(
            [np.linalg.solve((x.T * h) @ x + penalty, (x.T * h) @ target) for h in responsibility.T]
        )
        squares = np.sum(responsibility * (target[:, None] - x @ self.experts_.T) ** 2, axis=0)
        # As if one more row of deviation 1 were everybody's.
        variance = (1.0 + squares) / (1.0 + responsibility.sum(axis=0))
        self.deviations_ = np.maximum(np.sqrt(variance), _LEAST_DEVIATION)

    def _leaves(self, node: int) -> slice:
        """Return the experts below a node; nodes are counted as in a heap."""
        level = int(np.log2(node + 1))
        width = self.n_experts >> level
        first = (node + 1 - (1 << level)) * width
        return slice(first, first + width)

    def _log_gates(self, x: np.ndarray) -> np.ndarray:
        log_gates = np.zeros((len(x), self.n_experts))
        for gate, weights in enumerate(self.gates_):
            right = x @ weights
            log_gates[:, self._leaves(2 * gate + 1)] += np.log(expit(-right) + 1e-12)[:, None]
            log_gates[:, self._leaves(2 * gate + 2)] += np.log(expit(right) + 1e-12)[:, None]
        return log_gates

    def _answers(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not self.classify:
            return x @ self.experts_.T, self.deviations_
        answers = np.einsum("ni,mki->nmk", x, self.experts_)
        return answers - logsumexp(answers, axis=2, keepdims=True), self.deviations_


def _logistic(x: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the weights of a logistic regression: a row for each class, one if there are two."""
    model = LogisticRegression(C=1 / _PENALTY, fit_intercept=False, max_iter=200)
    return model.fit(x, target, sample_weight=weight).coef_
