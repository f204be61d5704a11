"""From the settings of a committee to untrained hierarchies."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from sklearn.base import BaseEstimator

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.families import Family
from pinfactory.core.hierarchy import Decision, Expert, FamilyExpert, Hierarchy, assemble
from pinfactory.core.learning import Learner, LearnerState, Utility
from pinfactory.core.priors import Priors, blank
from pinfactory.core.resources import Budget, Resource, Scheduled


class Replica(NamedTuple):
    """How one of several trainings that run side by side differs from the others."""

    seed: int
    n_experts: int
    selector: Resource
    expert: Resource


class Blueprint(BaseEstimator):
    """What selector, experts, priors and resources of a committee are to be."""

    @abstractmethod
    def _utility(self) -> Utility:
        """Return the utility the experts are trained for."""

    @abstractmethod
    def _head(self) -> Callable[[Array], Family]:
        """Return how the outputs of an expert's network become a posterior."""

    @property
    @abstractmethod
    def _n_outputs(self) -> int:
        """Return how many outputs an expert's network has."""

    def _started(
        self, learner: Learner, replicas: Sequence[Replica], n_features: int
    ) -> list[LearnerState]:
        """Return untrained states; all replicas have the shape of the largest."""
        most = max(r.n_experts for r in replicas)
        hierarchies = [self._build(jax.random.key(r.seed), most, n_features) for r in replicas]
        priors = self._priors(hierarchies[0], n_features)
        learning_rate, weight_decay = self._rates()

        def start(replica: Replica, hierarchy: Hierarchy) -> LearnerState:
            available = jax.device_put(np.arange(most) < replica.n_experts)
            return learner.init(
                eqx.tree_at(lambda h: h.available, hierarchy, available),
                priors,
                (replica.selector, replica.expert),
                learning_rate=learning_rate,
                weight_decay=weight_decay,
            )

        return list(map(start, replicas, hierarchies))

    def _continued(self, state: LearnerState, wanted: Replica) -> LearnerState:
        """Return what was learned before, with the settings of now."""
        resources = map(_resumed, state.resources, (wanted.selector, wanted.expert))
        return eqx.tree_at(
            lambda s: (s.resources, s.learning_rate, s.weight_decay),
            state,
            (tuple(resources), *map(jnp.asarray, self._rates())),
        )

    def _priors(self, hierarchy: Hierarchy, n_features: int) -> Priors:
        leaves, structure = jax.tree.flatten(hierarchy)
        like = blank(_decision(structure, tuple(map(_outlined, leaves)), n_features))
        if check.choice("prior", self.prior, ("running", "uniform")) == "uniform":
            return Priors.uniform(like)
        return Priors.running(
            like,
            check.number("momentum_selector", self.momentum_selector, 0.0, 1.0),
            check.number("momentum_expert", self.momentum_expert, 0.0, 1.0),
        )

    def _rates(self) -> tuple[float, float]:
        """Return learning rate and weight decay."""
        return (
            check.number("learning_rate", self.learning_rate, 0.0, open_low=True),
            check.number("weight_decay", self.weight_decay, 0.0),
        )

    def _resources(self) -> tuple[Resource, Resource]:
        most_bits = math.log2(check.integer("n_experts", self.n_experts, 1))
        return (
            check.resource("selector", self.beta_selector, self.selector_bits, most_bits),
            check.resource("expert", self.beta_expert, self.expert_bits),
        )

    def _build(self, key: Array, n_experts: int, n_features: int) -> Hierarchy:
        hidden = check.sizes("selector_hidden", self.selector_hidden)

        def selector(key: Array) -> Callable[..., Array]:
            return networks.mlp(n_features, n_experts, hidden, networks.tanh, key=key)

        return assemble(key, selector, lambda key: self._expert(n_features, key), n_experts)

    def _expert(self, n_features: int, key: Array) -> Expert:
        return FamilyExpert(self._network(n_features, self._n_outputs, key), self._head())

    def _network(self, inputs: int, outputs: int, key: Array) -> Callable[..., Array]:
        if callable(self.expert):
            return self.expert(inputs, outputs, key=key)
        if check.choice("expert", self.expert, ("linear", "mlp")) == "linear":
            return networks.linear(inputs, outputs, key=key)
        hidden = check.sizes("expert_hidden", self.expert_hidden)
        return networks.mlp(inputs, outputs, hidden, networks.relu, key=key)


@lru_cache(maxsize=64)
def _decision(structure: Any, leaves: tuple, n_features: int) -> Decision:
    """Return the shapes of a hierarchy's answers; tracing it takes longer than a hundred steps."""
    hierarchy = jax.tree.unflatten(structure, leaves)
    return eqx.filter_eval_shape(hierarchy, jax.ShapeDtypeStruct((n_features,), jnp.float32))


def _outlined(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf


def _resumed(old: Resource, new: Resource) -> Resource:
    """Return the resource of `new` at the point that `old` has come to."""
    if isinstance(old, Budget) and isinstance(new, Budget):
        return eqx.tree_at(lambda r: r.bits, old, new.bits)
    if isinstance(old, Scheduled) and isinstance(new, Scheduled):
        return eqx.tree_at(lambda r: r.step, new, old.step)
    return new
