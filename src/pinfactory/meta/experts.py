"""Experts that adapt to a task, and a selector that sees the whole support set."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision, Expert

from .adaptation import Adaptation
from .embeddings import Embedding
from .tasks import Samples


class TaskInput(NamedTuple):
    """What a hierarchy gets of a task: its support set, and inputs to answer."""

    support: Samples
    query: Float[Array, "q ..."]


class HeadedNetwork(eqx.Module):
    """A network in two parts: features of an input, and a linear map of the features."""

    features: Callable[..., Float[Array, " f"]]
    head: eqx.nn.Linear

    def __call__(self, x: Array, *, key: Key[Array, ""] | None = None) -> Float[Array, " d"]:
        return self.head(self.features(x, key=key))


class MetaExpert(Expert):
    """An expert for a family of tasks: an initial expert and a rule to adapt it.

    Attributes
    ----------
    initial
        Maps one input to p(y|x, m) before any adaptation; has a `network`.
    adaptation
        Fits the initial expert to a support set; may have parameters of its own, learned for each
        expert like all others.
    """

    initial: Expert
    adaptation: Adaptation

    def __call__(self, x: TaskInput, *, key: Key[Array, ""] | None = None) -> Family:
        """Return p(y|x, m) for every query input, after adapting to the support set."""
        return jax.vmap(self.adapt(x.support), axis_name="samples")(x.query)

    def adapt(self, support: Samples) -> Expert:
        """Return the expert for one task."""
        return self.adaptation(self.initial, support)


class TaskSelector(eqx.Module):
    """Maps a support set to logits over experts (Section 5)."""

    embedding: Embedding
    network: Callable[..., Float[Array, " m"]]

    def __call__(self, x: TaskInput, *, key: Key[Array, ""] | None = None) -> Float[Array, " m"]:
        return self.network(self.embedding(x.support), key=key)


# Log-odds that stand for certainty and still have finite logarithms.
CERTAIN = 30.0


class NearestCentre(eqx.Module):
    """A fixed choice in place of a selector's network: the centre nearest to the embedding.

    Centres are found by k-means. It is the control that a learned selector has to beat.
    """

    centres: Float[Array, "m e"]

    def __call__(
        self, embedding: Float[Array, " e"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, " m"]:
        centres = jax.lax.stop_gradient(self.centres)
        distance = jnp.sum((embedding - centres) ** 2, axis=-1)
        return jnp.where(jnp.arange(len(centres)) == jnp.argmin(distance), CERTAIN, 0.0)


def per_query(decision: Decision) -> Decision:
    """Turn decisions for n tasks with q queries into decisions for n · q inputs.

    Every query is an input of its own whose selector has seen the support set only. So objective,
    priors and measurements of the core hold as they are.
    """
    (selection,) = decision.selections
    n_queries = decision.answers.batch_shape[2]
    repeated = Categorical(jnp.repeat(selection.log_probs, n_queries, axis=0))
    return Decision((repeated,), flatten_queries(decision.answers))


def flatten_queries(answers: Family) -> Family:
    """Turn axes (tasks, experts, queries) of answers into (tasks · queries, experts)."""

    def flat(leaf: Array) -> Array:
        leaf = jnp.moveaxis(leaf, 2, 1)
        return leaf.reshape(-1, *leaf.shape[2:])

    return jax.tree.map(flat, answers)
