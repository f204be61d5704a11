"""The hierarchical mixture of linear experts of Jordan & Jacobs (1994), by EM."""

import numpy as np
from scipy.special import expit, logsumexp
from sklearn.linear_model import LogisticRegression

from .mixture import LEAST_DEVIATION, ControlMixture

_PENALTY = 1.0  # of squared weights, as ridge and logistic regression have it by default


class EMMixture(ControlMixture):
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
        # As if every expert had one more row of deviation 1.
        variance = (1.0 + squares) / (1.0 + responsibility.sum(axis=0))
        self.deviations_ = np.maximum(np.sqrt(variance), LEAST_DEVIATION)

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
