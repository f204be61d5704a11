"""What else could explain the error of meta-learners of curves: clusters, no prices, width."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.neural_network import MLPRegressor

from pinfactory.meta import Histogram, MetaSpecialistRegressor
from pinfactory.meta.tasks import Sinusoids

from .sizes import NO_PRICES, dense_width, n_parameters

DENSE = "dense network"
_COMMITTEES: dict[str, dict[str, Any]] = {
    "k-means selector": {"selector": "kmeans"},
    "without prices": NO_PRICES,
    "grown from two experts": {"n_initial_experts": 2},
}
CURVE_CONTROLS = (*_COMMITTEES, DENSE)


def curve_control(
    name: str,
    make: Callable[..., MetaSpecialistRegressor],
    n_experts: int,
    tasks: Sinusoids,
    n_tasks: int,
    inner_steps: int | None,
    seed: int,
) -> float:
    """Train a control of the meta-learner that `make` builds for so many experts.

    Returns the error on new points of `n_tasks` new curves.

    A dense network has about as many parameters as the committee. It adapts by the same rule;
    without one it would know nothing of a curve, and sees what the selector sees beside x instead.
    """
    if name in _COMMITTEES:
        model = make(n_experts, random_state=seed, **_COMMITTEES[name]).fit(tasks)
        return model.evaluate(tasks, n_tasks, inner_steps=inner_steps).mean
    committee = make(n_experts, random_state=seed)
    hierarchy = make(n_experts, random_state=seed, max_iter=1).fit(tasks).state_.model
    n_weights = n_parameters(hierarchy)
    if committee.adaptation == "none":
        how = (n_weights, committee.max_iter, committee.batch_size, seed)
        return InformedNetwork(*how).fit(tasks).mean_error(tasks, n_tasks)
    n_own = n_parameters(hierarchy.experts) / n_experts
    width = round(committee.expert_hidden[0] * n_weights / n_own)
    wide = make(1, random_state=seed, expert_hidden=(width,)).fit(tasks)
    return wide.evaluate(tasks, n_tasks, inner_steps=inner_steps).mean


class InformedNetwork:
    """One network with a hidden layer that sees x and the known points of a curve, by Adam.

    Parameters
    ----------
    n_weights
        How many weights it has at least.
    max_iter, batch_size
        Steps of learning, and curves in each.
    seed
        Of weights and curves.
    """

    def __init__(self, n_weights: int, max_iter: int, batch_size: int, seed: int) -> None:
        self.n_weights, self.max_iter, self.batch_size = n_weights, max_iter, batch_size
        self.seed = seed

    def fit(self, tasks: Sinusoids) -> "InformedNetwork":
        """Learn from curves."""
        low, high = map(jnp.asarray, tasks.domain)
        self.embedding = Histogram(low, high)
        width = dense_width(self.embedding.size + 1, 1, self.n_weights, 1)
        self.network = MLPRegressor(
            hidden_layer_sizes=(width,), learning_rate_init=3e-3, random_state=self.seed
        )
        random = np.random.default_rng(self.seed)
        for _ in range(self.max_iter):
            self.network.partial_fit(*self._rows(tasks, random, self.batch_size))
        return self

    def mean_error(self, tasks: Sinusoids, n_tasks: int) -> float:
        """Return the mean squared error on new points of new curves."""
        x, y = self._rows(tasks, np.random.default_rng([self.seed, 1]), n_tasks)
        return float(np.mean((self.network.predict(x) - y) ** 2))

    def _rows(
        self, tasks: Sinusoids, random: np.random.Generator, n_tasks: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return a row for every new point: what is known of its curve, and x; and its y."""
        codes, x, y = _seen(self.embedding, tasks, jax.device_put(tasks.draw(random, n_tasks)))
        known = np.repeat(np.asarray(codes), x.shape[1], axis=0)
        return np.hstack([known, np.asarray(x).reshape(-1, 1)]), np.asarray(y).ravel()


@eqx.filter_jit
def _seen(embedding: Histogram, tasks: Sinusoids, recipes: Any) -> Any:
    def one(recipe: Any) -> Any:
        episode = tasks.build(recipe)
        return embedding(episode.support), episode.query.x, episode.query.y

    return jax.vmap(one)(recipes)
