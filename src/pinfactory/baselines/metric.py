"""Learners that compare: queries are classified by their distance to the support samples."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pinfactory.base import describe
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import Samples
from pinfactory.persistence import register
from pinfactory.vision import SAMPLES

from .few_shot import PARAMETERS, FewShotBaseline, FewShotModel


class MetricModel(FewShotModel):
    """Features of support and query, and a scale of their comparison."""

    embedding: HeadedNetwork
    log_scale: Float[Array, ""]

    @classmethod
    def start(cls, network: HeadedNetwork) -> Any:
        """Begin with products and distances in units of the number of features."""
        n_features = network.head.weight.shape[1]
        return cls(network, jax.device_put(np.float32(np.log(10.0 / n_features))))

    def features(
        self, support: Samples, query: Float[Array, "q ..."]
    ) -> tuple[Float[Array, "s f"], Float[Array, "q f"]]:
        """Return the features of both sets, normalised together where that matters."""
        together = jnp.concatenate([support.x, query])
        features = jax.vmap(self.embedding.features, axis_name=SAMPLES)(together)
        return features[: len(support.x)], features[len(support.x) :]

    @property
    def n_ways(self) -> int:
        """Number of classes in training; a new task may have fewer."""
        return self.embedding.head.weight.shape[0]


class PrototypicalModel(MetricModel):
    """Logits are negative squared distances to the means of the classes that occur."""

    def __call__(self, support: Samples, query: Float[Array, "q ..."]) -> Float[Array, "q ways"]:
        shown, asked = self.features(support, query)
        member = jax.nn.one_hot(support.y, self.n_ways)
        count = member.sum(axis=0)
        prototypes = member.T @ shown / jnp.maximum(count, 1.0)[:, None]
        distance = jnp.sum((asked[:, None] - prototypes) ** 2, axis=-1)
        return jnp.where(count > 0.0, -jnp.exp(self.log_scale) * distance, -jnp.inf)


class MatchingModel(MetricModel):
    """Probabilities are those of the support labels, weighted by a softmax over cosines."""

    def __call__(self, support: Samples, query: Float[Array, "q ..."]) -> Float[Array, "q ways"]:
        shown, asked = self.features(support, query)
        cosine = unit(asked) @ unit(shown).T
        # The scale is in units of the number of features, which a cosine has lost.
        attention = jax.nn.log_softmax(jnp.exp(self.log_scale) * shown.shape[1] * cosine, axis=-1)
        masked = jnp.where(
            support.y[:, None] == jnp.arange(self.n_ways), attention[..., None], -jnp.inf
        )
        return jax.nn.logsumexp(masked, axis=1)


def unit(rows: Float[Array, "n f"]) -> Float[Array, "n f"]:
    """Scale rows to length one."""
    return rows / jnp.sqrt(jnp.sum(rows**2, axis=-1, keepdims=True) + 1e-12)


@register("PrototypicalNetworks")
@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class PrototypicalNetworks(FewShotBaseline):
    """Prototypical Networks (Snell et al. 2017), with a learned scale of the distances.

    Parameters
    ----------
    {parameters}
    """

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        return PrototypicalModel.start(network)


@register("MatchingNetworks")
@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class MatchingNetworks(FewShotBaseline):
    """Matching Networks (Vinyals et al. 2016), with a learned scale of the cosines.

    Without full context embeddings, which the original found to help little on Omniglot.

    Parameters
    ----------
    {parameters}
    """

    _comparison: ClassVar[type[MatchingModel]] = MatchingModel

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        return self._comparison.start(network)
