"""What a hierarchy for tasks is made of: embeddings of support sets, a selector, and experts.

Every embedding has the same size for support sets of any number of samples and does not depend
on their order (Section 5 asks for this, and for little computation).
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from pinfactory import networks
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision, Expert

from .adaptation import Adaptation
from .tasks import Samples

Pool = Literal["max", "mean", "min"]
# Log-odds that stand for certainty and still have finite logarithms.
CERTAIN = 30.0


class TaskInput(NamedTuple):
    """What a hierarchy gets of a task: its support set, and inputs to answer."""

    support: Samples
    query: Float[Array, "q ..."]


class Embedding(eqx.Module):
    """Maps a support set to a vector of `size` numbers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Length of the vector."""

    @abstractmethod
    def __call__(self, support: Samples) -> Float[Array, " e"]:
        """Return the vector."""


class Histogram(Embedding):
    """The mean target in every bin of a one-dimensional input, and whether the bin is occupied.

    Section 5.1 and Appendix B. Inputs outside of the range count to the outer bins.
    """

    low: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    high: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    bins: int = eqx.field(static=True, default=16)
    targets: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        return self.bins * (self.targets + 1)

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        if support.x.ndim != 2 or support.x.shape[1] != 1:
            raise ValueError(
                "a histogram must be of inputs with one dimension, but got samples of shape "
                f"{support.x.shape[1:]}; use a set encoder."
            )
        place = (support.x[:, 0] - self.low) / (self.high - self.low) * self.bins
        bin_ = jnp.clip(jnp.floor(place).astype(int), 0, self.bins - 1)
        member = jax.nn.one_hot(bin_, self.bins)
        count = member.sum(axis=0)
        mean = member.T @ support.y / jnp.maximum(count, 1.0)[:, None]
        return jnp.concatenate([mean.ravel(), (count > 0).astype(mean.dtype)])


class Pooled(Embedding):
    """Features of every sample, pooled over all samples or over those of some classes.

    For images the paper takes the bottleneck of a convolutional autoencoder and its maximum over
    the positive samples (Appendix B).
    """

    encoder: Callable[..., Float[Array, " e"]]  #: maps one sample to `width` features
    width: int = eqx.field(static=True)
    #: How features of several samples become one vector.
    pool: Pool = eqx.field(static=True, default="max")
    #: Classes that are pooled, one after the other; all samples together if None.
    labels: tuple[int, ...] | None = eqx.field(static=True, default=None)
    #: Whether the encoder learns with the selector, or stays as it is.
    trained: bool = eqx.field(static=True, default=False)
    #: Whether the vector is scaled to a mean square of one.
    normalised: bool = eqx.field(static=True, default=False)

    @property
    def size(self) -> int:
        return self.width * (1 if self.labels is None else len(self.labels))

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        features = jax.vmap(self.encoder)(support.x)
        if not self.trained:
            features = jax.lax.stop_gradient(features)
        if self.labels is None:
            code = pooled(features, jnp.ones(len(features), bool), self.pool)
        else:
            classes = [pooled(features, support.y == label, self.pool) for label in self.labels]
            code = jnp.concatenate(classes)
        if not self.normalised:
            return code
        return code * jnp.sqrt(len(code) / (jnp.sum(code**2) + 1e-6))


class SetEncoder(Embedding):
    """A network of every sample, a mean over the samples, a network of the mean (Deep Sets).

    Zaheer et al. (2017). Trained with the selector. A class label enters as one of `labels`
    classes, a numerical target as it is.
    """

    inner: networks.Network
    outer: networks.Network
    width: int = eqx.field(static=True)
    labels: int | None = eqx.field(static=True, default=None)

    @classmethod
    def start(
        cls,
        inputs: int,
        targets: int,
        *,
        key: Key[Array, ""],
        width: int = 64,
        classes: bool = False,
    ) -> "SetEncoder":
        """Build networks with one hidden layer each for samples of `inputs` + `targets` numbers."""
        keys = jax.random.split(key)
        return cls(
            networks.mlp(inputs + targets, width, (width,), networks.relu, key=keys[0]),
            networks.mlp(width, width, (width,), networks.relu, key=keys[1]),
            width,
            targets if classes else None,
        )

    @property
    def size(self) -> int:
        return self.width

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        y = support.y if self.labels is None else jax.nn.one_hot(support.y, self.labels)
        x = support.x.reshape(len(y), -1)
        inner = jax.vmap(self.inner)(jnp.concatenate([x, y], axis=1))
        return self.outer(inner.mean(axis=0))


def pooled(
    features: Float[Array, "k e"],
    counts: Float[Array, " k"] | Array,
    pool: Pool,
) -> Float[Array, " e"]:
    """Pool the rows that count; at least one must."""
    chosen = counts[:, None]
    if pool == "mean":
        return jnp.sum(jnp.where(chosen, features, 0.0), axis=0) / jnp.sum(chosen)
    if pool == "max":
        return jnp.max(jnp.where(chosen, features, -jnp.inf), axis=0)
    return jnp.min(jnp.where(chosen, features, jnp.inf), axis=0)


class HeadedNetwork(eqx.Module):
    """A network in two parts: features of an input, and a linear map of the features."""

    features: Callable[..., Float[Array, " f"]]
    head: eqx.nn.Linear

    def __call__(self, x: Array, *, key: Key[Array, ""] | None = None) -> Float[Array, " d"]:
        return self.head(self.features(x, key=key))


class MetaExpert(Expert):
    """An expert for a family of tasks: an initial expert and a rule to adapt it."""

    initial: Expert  #: maps one input to p(y|x, m) before any adaptation; has a `network`
    #: Fits the initial expert to a support set; may have parameters of its own, learned for each
    #: expert like all others.
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

    @property
    def layers(self) -> tuple[Callable[..., Array], ...]:
        """Layers of the network."""
        return getattr(self.network, "layers", ())

    def hidden(self, support: Samples) -> Float[Array, " h"]:
        """Return what the last layer sees of a support set."""
        return eqx.nn.Sequential(self.layers[:-1])(self.embedding(support))


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
