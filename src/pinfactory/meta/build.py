"""From a meta-learner's settings and some of its tasks to an untrained hierarchy."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from sklearn.cluster import KMeans

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.compiling import compiled_fully
from pinfactory.core.families import Categorical
from pinfactory.core.gaussian_experts import ConstantNoiseExpert
from pinfactory.core.hierarchy import Expert, FamilyExpert, Hierarchy, assemble
from pinfactory.vision import Autoencoder, Encoder, OneBlock, train_autoencoder

from .adaptation import Adaptation, GradientSteps, LastLayer, Unchanged
from .experts import (
    Embedding,
    HeadedNetwork,
    Histogram,
    MetaExpert,
    NearestCentre,
    Pooled,
    SetEncoder,
    TaskSelector,
)
from .parameters import TaskDescription, kind_of_expert, rule_of_adaptation
from .shared import FeatureExpert, KernelSteps, SharedHierarchy
from .tasks import Samples

ACTIVATIONS = {"relu": networks.relu, "tanh": networks.tanh}
# Images whose moments normalise a convolutional block.
N_IMAGES = 1000
# Filters of the encoder that learns with the selector of images.
ENCODER_FILTERS = (16, 32, 16)


def build_hierarchy(settings: Any, tasks: TaskDescription, seed: int) -> Hierarchy:
    """Return an untrained hierarchy."""
    n_experts = check.integer("n_experts", settings.n_experts, 1)
    key = jax.random.key(seed)

    def selector(key: Key[Array, ""]) -> TaskSelector:
        return build_selector(settings, tasks, key)

    if rule_of_adaptation(settings, tasks) != "kernel":
        return assemble(key, selector, lambda k: build_expert(settings, tasks, k), n_experts)
    keys = jax.random.split(key, 3)
    trunk = build_block(settings, tasks, keys[0])
    rank = check.integer("rank", settings.rank, 1)
    steps = 10 if settings.inner_steps is None else settings.inner_steps
    return SharedHierarchy(
        selector(keys[2]),
        FeatureExpert.start(n_experts, trunk.size, tasks.n_outputs, rank, key=keys[1]),
        jnp.ones(n_experts, bool),
        trunk,
        KernelSteps.start(
            trunk.size, steps=check.integer("inner_steps", steps, 1, check.MOST_STEPS)
        ),
    )


# ----------------------------------------------------------------------------------- selector


def build_selector(settings: Any, tasks: TaskDescription, key: Key[Array, ""]) -> TaskSelector:
    """Return an embedding of support sets and a choice by it: a network, or fixed clusters."""
    kind = check.choice("selector", settings.selector, ("mlp", "kmeans"))
    embedding = build_embedding(settings, tasks, jax.random.fold_in(key, 0))
    if kind == "kmeans":
        return TaskSelector(embedding, nearest_centre(settings, tasks, embedding, key))
    hidden = check.sizes("selector_hidden", settings.selector_hidden)
    network: Any = networks.mlp(
        embedding.size,
        settings.n_experts,
        hidden,
        networks.relu,
        key=jax.random.fold_in(key, 1),
    )
    if tasks.is_image:
        # Logits of the order of one: experts differ in their tasks sooner.
        last = jax.device_put(3.0 * np.asarray(network.layers[-1].weight))
        network = eqx.tree_at(lambda n: n.layers[-1].weight, network, last)
    return TaskSelector(embedding, network)


def nearest_centre(
    settings: Any, tasks: TaskDescription, embedding: Embedding, key: Key[Array, ""]
) -> NearestCentre:
    """Return clusters of the embeddings of some tasks, found by k-means."""
    centres = np.zeros((settings.n_experts, embedding.size), np.float32)
    if tasks.support is not None:
        codes = np.asarray(_embedded(embedding, tasks.support), float)
        seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
        clusters = KMeans(settings.n_experts, n_init=4, random_state=seed).fit(codes)
        centres = clusters.cluster_centers_.astype(np.float32)
    return NearestCentre(jax.device_put(centres))


@compiled_fully
def _embedded(embedding: Embedding, support: Samples) -> Float[Array, "n e"]:
    return jax.vmap(embedding)(support)


def build_embedding(settings: Any, tasks: TaskDescription, key: Key[Array, ""]) -> Embedding:
    """Return how a support set becomes a vector."""
    if isinstance(settings.embedding, Embedding):
        return settings.embedding
    options = ("auto", "histogram", "set", "conv", "autoencoder")
    kind = check.choice("embedding", settings.embedding, options)
    pool = check.choice("embedding_pool", settings.embedding_pool, ("max", "mean", "min"))
    one_number = not tasks.is_classification and tasks.input_shape == (1,)
    fixed = settings.selector == "kmeans"
    if kind == "auto" and tasks.is_image and tasks.is_classification:
        kind = "autoencoder" if fixed else "conv"
    elif kind == "auto":
        kind = "histogram" if one_number else "set"
    if kind == "histogram" and not one_number:
        raise ValueError(
            "`embedding` must be 'set' for other tasks than regression on one feature, but "
            "got 'histogram'."
        )
    if kind in ("conv", "autoencoder") and not (tasks.is_image and tasks.is_classification):
        raise ValueError(
            f"`embedding` must be 'set' where samples are no images of classes, but got {kind!r}."
        )
    if kind == "histogram":
        low, high = map(jnp.asarray, tasks.x_range)
        return Histogram(low, high, targets=tasks.n_outputs)
    if kind == "set":
        n_inputs, classes = math.prod(tasks.input_shape), tasks.is_classification
        return SetEncoder.start(n_inputs, tasks.n_outputs, key=key, classes=classes)
    if kind == "conv":
        encoder = Encoder.start(tasks.input_shape, ENCODER_FILTERS, key=key)
        return Pooled(encoder, encoder.size, pool, tasks.recognised, True, True)
    steps = check.integer("autoencoder_iter", settings.autoencoder_iter, 1)
    if tasks.support is None:
        frozen = Autoencoder.start(tasks.input_shape, key=key).encoder
    else:
        images = tasks.images(tasks.recognised)
        frozen = train_autoencoder(images, key=key, steps=steps).encoder
    if not fixed:
        return Pooled(frozen, frozen.size, pool, tasks.recognised, False, True)
    # The centre nearest to a mean has the least sum of squared distances to all its samples, so
    # that centres mean the same for any number of shots. The paper's maximum moves with it.
    labels = tasks.recognised if len(tasks.recognised) == 1 else None
    return Pooled(frozen, frozen.size, "mean", labels)


# ------------------------------------------------------------------------------------ experts


def build_expert(settings: Any, tasks: TaskDescription, key: Key[Array, ""]) -> MetaExpert:
    """Return an expert that shares nothing with others."""
    network = build_network(settings, tasks, key)
    initial: Expert
    if tasks.is_classification:
        initial = FamilyExpert(network, Categorical.from_logits)
    else:
        initial = ConstantNoiseExpert(
            network, jax.device_put(np.zeros(tasks.n_outputs, np.float32))
        )
    return MetaExpert(initial, build_adaptation(settings, tasks, initial, key))


def build_network(settings: Any, tasks: TaskDescription, key: Key[Array, ""]) -> HeadedNetwork:
    """Return features and a linear head: convolutional, a perceptron, or the user's own."""
    kind = kind_of_expert(settings, tasks)
    if callable(kind):
        return kind(tasks.input_shape, tasks.n_outputs, key=key)
    if kind == "conv":
        keys = jax.random.split(key)
        block = build_block(settings, tasks, keys[0])
        return headed(block, block.size, tasks.n_outputs, keys[1])
    name = check.choice("activation", settings.activation, list(ACTIVATIONS))
    *hidden, width = check.sizes("expert_hidden", settings.expert_hidden)
    activation, inputs = ACTIVATIONS[name], math.prod(tasks.input_shape)
    body = networks.mlp(inputs, width, hidden, activation, key=jax.random.fold_in(key, 2))
    layers: list[Any] = [eqx.nn.Lambda(jnp.ravel), body, eqx.nn.Lambda(activation)]
    features = eqx.nn.Sequential(layers)
    return headed(features, width, tasks.n_outputs, jax.random.fold_in(key, 3))


def build_block(settings: Any, tasks: TaskDescription, key: Key[Array, ""]) -> OneBlock:
    """Return a convolutional block, normalised by the moments of some images."""
    filters = check.integer("filters", settings.filters, 1)
    pool = check.integer("pool", settings.pool, 1)
    return OneBlock.start(tasks.images()[:N_IMAGES], key=key, filters=filters, pool=pool)


def headed(features: Any, size: int, outputs: int, key: Key[Array, ""]) -> HeadedNetwork:
    """Put a new linear head on features."""
    head = networks.linear(size, outputs, key=key)
    assert isinstance(head, eqx.nn.Linear)
    return HeadedNetwork(features, head)


def build_adaptation(
    settings: Any, tasks: TaskDescription, initial: Expert, key: Key[Array, ""]
) -> Adaptation:
    """Return how one expert adapts to a support set."""
    rule = rule_of_adaptation(settings, tasks)
    if rule == "none":
        return Unchanged()
    if rule == "last_layer":
        return LastLayer.start(initial, key=jax.random.fold_in(key, 1))
    steps = 5 if settings.inner_steps is None else settings.inner_steps
    return GradientSteps.start(
        initial,
        tasks.utility,
        rate=check.number("inner_rate", settings.inner_rate, 0.0, open_low=True),
        steps=check.integer("inner_steps", steps, 1, check.MOST_STEPS),
        part="head" if rule == "head" else "network",
        learned=bool(settings.learn_rates),
        first_order=bool(settings.first_order),
    )
