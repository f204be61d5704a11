"""Experts that adapt to a task, and a selector that looks at the whole task."""

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


class Question(NamedTuple):
    """What a hierarchy of meta-learners is asked: a task by its samples, and inputs in it."""

    support: Samples
    query: Float[Array, "q ..."]


class HeadedNetwork(eqx.Module):
    """A network in two parts: features of an input, and a linear map of the features."""

    features: Callable[..., Float[Array, " f"]]
    head: eqx.nn.Linear

    def __call__(self, x: Array, *, key: Key[Array, ""] | None = None) -> Float[Array, " d"]:
        return self.head(self.features(x, key=key))


class MetaExpert(Expert):
    """An expert for a family of tasks: knowledge to start from, and a way to adapt it.

    Attributes
    ----------
    knowledge
        Maps one input to p(y|x, m) before any adaptation; has a `network`.
    adaptation
        Makes the knowledge fit a support set; may have parameters of its own, learned for each
        expert like all others.
    """

    knowledge: Expert
    adaptation: Adaptation

    def __call__(self, x: Question, *, key: Key[Array, ""] | None = None) -> Family:
        """Return p(y|x, m) for every query input, after adapting to the support set."""
        return jax.vmap(self.adapt(x.support), axis_name="samples")(x.query)

    def adapt(self, support: Samples) -> Expert:
        """Return the expert for one task."""
        return self.adaptation(self.knowledge, support)


class TaskSelector(eqx.Module):
    """Maps a support set to logits over experts (Section 5)."""

    embedding: Embedding
    network: Callable[..., Float[Array, " m"]]

    def __call__(self, x: Question, *, key: Key[Array, ""] | None = None) -> Float[Array, " m"]:
        return self.network(self.embedding(x.support))


def per_sample(decision: Decision) -> Decision:
    """Turn decisions for n tasks with q queries into decisions for n · q inputs.

    Every query sample is an input of its own whose selector has seen the support set only. So
    objective, priors and measurements of the core hold as they are.
    """
    (selection,) = decision.selections
    n_queries = decision.answers.batch_shape[2]

    def flat(leaf: Array) -> Array:
        leaf = jnp.moveaxis(leaf, 2, 1)
        return leaf.reshape(-1, *leaf.shape[2:])

    repeated = Categorical(jnp.repeat(selection.log_probs, n_queries, axis=0))
    return Decision((repeated,), jax.tree.map(flat, decision.answers))
