"""From a meta-learner's settings to an untrained hierarchy."""

import math
from abc import abstractmethod
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array
from sklearn.base import BaseEstimator

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.hierarchy import Expert, assemble
from pinfactory.core.learning import Utility
from pinfactory.core.priors import Priors, blank
from pinfactory.core.resources import Resource

from .adaptation import Adaptation, GradientSteps, LastLayer, Unchanged
from .embeddings import Embedding, Histogram, SetEncoder
from .experts import HeadedNetwork, MetaExpert, Question, TaskSelector, per_sample
from .learner import MetaLearner, MetaState
from .tasks import Samples

ACTIVATIONS = {"relu": networks.relu, "tanh": networks.tanh}


class Blueprint(BaseEstimator):
    """Builds selector, experts, priors and resources for samples of known shapes."""

    input_shape_: tuple[int, ...]
    n_outputs_: int
    x_range_: tuple[float, float]
    _targets_are_numbers: bool

    @abstractmethod
    def _utility(self) -> Utility:
        """Return the utility that the experts are trained for."""

    @abstractmethod
    def _knowledge(self, network: HeadedNetwork) -> Expert:
        """Return an expert that answers with the outputs of the network."""

    def _learner(self) -> MetaLearner:
        selection = check.choice("selection", self.selection, ("exact", "sampled"))
        return MetaLearner(self._utility(), sampled=selection == "sampled")

    def _start(self, learner: MetaLearner, seed: int) -> MetaState:
        """Return an untrained state."""
        n_experts = check.integer("n_experts", self.n_experts, 1)
        hierarchy = assemble(jax.random.key(seed), self._selector, self._expert, n_experts)
        numbers = self._targets_are_numbers
        target = jnp.zeros((1, self.n_outputs_)) if numbers else jnp.zeros(1, int)
        support = Samples(jnp.zeros((1, *self.input_shape_)), target)
        shapes = eqx.filter_eval_shape(
            lambda: per_sample(
                jax.vmap(hierarchy)(jax.tree.map(lambda a: a[None], Question(support, support.x)))
            )
        )
        like = blank(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes))
        return learner.init(
            hierarchy,
            Priors.running(
                like,
                check.number("momentum_selector", self.momentum_selector, 0.0, 1.0),
                check.number("momentum_expert", self.momentum_expert, 0.0, 1.0),
            ),
            self._resources(),
            learning_rate=check.number("learning_rate", self.learning_rate, 0.0, open_low=True),
            decay_steps=float(check.integer("max_iter", self.max_iter, 1)),
            balance=check.number("balance", self.balance, 0.0),
        )

    def _resources(self) -> tuple[Resource, Resource]:
        most_bits = math.log2(self.n_experts)
        return (
            check.resource("selector", self.beta_selector, self.selector_bits, most_bits),
            check.resource("expert", self.beta_expert, self.expert_bits),
        )

    def _selector(self, key: Array) -> TaskSelector:
        embedding = self._embedding(jax.random.fold_in(key, 0))
        hidden = check.sizes("selector_hidden", self.selector_hidden)
        return TaskSelector(
            embedding,
            networks.mlp(
                embedding.size,
                self.n_experts,
                hidden,
                networks.relu,
                key=jax.random.fold_in(key, 1),
            ),
        )

    def _embedding(self, key: Array) -> Embedding:
        """Return how a support set becomes a vector."""
        if isinstance(self.embedding, Embedding):
            return self.embedding
        one_number = self._targets_are_numbers and self.input_shape_ == (1,)
        kind = check.choice("embedding", self.embedding, ("auto", "histogram", "set"))
        if kind == "histogram" and not one_number:
            raise ValueError(
                "`embedding` must be 'set' for other tasks than regression on one feature, but "
                "got 'histogram'."
            )
        if kind == "set" or not one_number:
            return SetEncoder.start(
                math.prod(self.input_shape_),
                self.n_outputs_,
                key=key,
                classes=not self._targets_are_numbers,
            )
        low, high = map(jnp.asarray, self.x_range_)
        return Histogram(low, high, targets=self.n_outputs_)

    def _expert(self, key: Array) -> MetaExpert:
        knowledge = self._knowledge(self._network(key))
        return MetaExpert(knowledge, self._adaptation(knowledge, jax.random.fold_in(key, 1)))

    def _network(self, key: Array) -> HeadedNetwork:
        if callable(self.expert):
            return self.expert(self.input_shape_, self.n_outputs_, key=key)
        check.choice("expert", self.expert, ("relu", "tanh"))
        *hidden, width = check.sizes("expert_hidden", self.expert_hidden)
        activation = ACTIVATIONS[self.expert]
        inputs = math.prod(self.input_shape_)
        body = networks.mlp(inputs, width, hidden, activation, key=jax.random.fold_in(key, 2))
        head = networks.linear(width, self.n_outputs_, key=jax.random.fold_in(key, 3))
        layers: list[Callable[..., Array]] = [
            eqx.nn.Lambda(jnp.ravel),
            body,
            eqx.nn.Lambda(activation),
        ]
        assert isinstance(head, eqx.nn.Linear)
        return HeadedNetwork(eqx.nn.Sequential(layers), head)

    def _adaptation(self, knowledge: Expert, key: Array) -> Adaptation:
        options = ("last_layer", "gradient", "head", "none")
        rule = check.choice("adaptation", self.adaptation, options)
        if rule == "none":
            return Unchanged()
        if rule == "last_layer":
            return LastLayer.start(knowledge, key=key)
        return GradientSteps.start(
            knowledge,
            self._utility(),
            rate=check.number("inner_rate", self.inner_rate, 0.0, open_low=True),
            steps=check.integer("inner_steps", self.inner_steps, 1),
            part="head" if rule == "head" else "network",
            learned=bool(self.learn_rates),
            first_order=bool(self.first_order),
        )
