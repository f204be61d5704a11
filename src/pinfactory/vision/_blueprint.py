"""From the settings of image specialists to an untrained hierarchy and its resources."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans

from pinfactory import settings as check
from pinfactory.core.resources import Fixed, Resource, Scheduled
from pinfactory.meta.embeddings import Embedding, Pooled
from pinfactory.meta.experts import TaskSelector
from pinfactory.meta.looking import look_at
from pinfactory.meta.tasks import Episode, Tasks

from ._autoencoder import BOTTLENECK, Autoencoder, train_autoencoder
from ._blocks import OneBlock
from ._selection import Bottleneck, PositivesEncoder, learned, nearest, pooled_codes
from ._specialists import Craft, KernelSteps, SharedSpecialists

# Training tasks that are looked at before the first step.
N_LOOKED_AT = 1000
# A new selector is given a division of tasks for this share of all steps, and its information is
# cheap at first: β₁ begins at this many times its value, which it has after this share.
DIVIDED_SHARE, FIRST_BETA, CHEAP_SHARE = 0.1, 10.0, 0.5


class Blueprint(BaseEstimator):
    """Checks settings, and builds selector, experts and resources for images of known size."""

    def _check_settings(self) -> None:
        check.choice("selection", self.selection, ("free energy", "k-means"))
        check.choice("embedding", self.embedding, ("learned", "autoencoder"))
        check.choice("embedding_pool", self.embedding_pool, ("max", "mean", "min"))
        for name in ("n_experts", "filters", "pool", "rank", "max_iter", "batch_size"):
            check.integer(name, getattr(self, name), 1)
        check.integer("inner_steps", self.inner_steps, 1)
        for name in ("beta_selector", "beta_expert"):
            check.number(name, getattr(self, name), 0.0, open_low=True)
        for name in ("balance", "learning_rate"):
            check.number(name, getattr(self, name), 0.0)
        check.number("momentum", self.momentum, 0.0, 1.0)

    def _resources(self, new_selector: bool) -> tuple[Resource, Resource]:
        beta, steps = (
            jnp.asarray(float(self.beta_selector)),
            jnp.asarray(CHEAP_SHARE * self.max_iter),
        )
        cheap_at_first = Scheduled(FIRST_BETA * beta, beta, steps, "linear")
        selector = cheap_at_first if new_selector else Fixed(beta)
        return selector, Fixed(jnp.asarray(float(self.beta_expert)))

    def _look_at(self, tasks: Tasks) -> Episode:
        """Return some training tasks, after checking that they are of the right kind."""
        seen = look_at(tasks, self.random_state, N_LOOKED_AT)
        shape, labels = seen.support.x.shape, set(np.unique(seen.support.y).tolist())
        if len(shape) != 4 or labels != {0, 1}:
            raise ValueError(
                "tasks must be of images with labels 0 and 1, but got samples of shape "
                f"{shape[2:]} and labels {sorted(labels)}."
            )
        return seen

    def _start(self, seen: Episode) -> SharedSpecialists:
        images, shape = np.asarray(seen.support.x), seen.support.x.shape
        positives = images[np.asarray(seen.support.y) == 1].reshape(shape[0], -1, *shape[2:])
        some = images.reshape(-1, *shape[2:])[:N_LOOKED_AT]
        return self._hierarchy(some, self._selector(shape[-1], positives))

    def _hierarchy(self, images: np.ndarray, selector: TaskSelector) -> SharedSpecialists:
        keys = jax.random.split(jax.random.key(self.random_state))
        trunk = OneBlock.start(images, key=keys[0], filters=self.filters, pool=self.pool)
        return SharedSpecialists(
            selector,
            Craft.start(self.n_experts, trunk.size, self.rank, key=keys[1]),
            jnp.ones(self.n_experts, bool),
            trunk,
            KernelSteps.start(trunk.size, steps=self.inner_steps),
        )

    def _selector(
        self, side: int, positives: Float[np.ndarray, "tasks k h w"] | None = None
    ) -> TaskSelector:
        """Return a selector for images of so many pixels; without positives only its shape."""
        key = jax.random.key(self.random_state + 1)
        keys = jax.random.split(key)
        if self.selection == "k-means":
            autoencoder = self._autoencoder(key, positives)
            centres = np.zeros((self.n_experts, BOTTLENECK))
            if positives is not None:
                clusters = KMeans(self.n_experts, n_init=4, random_state=self.random_state)
                centres = clusters.fit(pooled_codes(autoencoder, positives)).cluster_centers_
            return nearest(autoencoder, centres)
        embedding: Embedding
        if self.embedding == "learned":
            embedding = PositivesEncoder.start(key=keys[0], side=side, pool=self.embedding_pool)
        else:
            autoencoder = self._autoencoder(keys[0], positives)
            embedding = Bottleneck(Pooled(autoencoder, BOTTLENECK, self.embedding_pool, 1))
        return learned(embedding, self.n_experts, key=keys[1])

    def _autoencoder(
        self, key: Key[Array, ""], positives: Float[np.ndarray, "tasks k h w"] | None
    ) -> Autoencoder:
        if positives is None:
            return Autoencoder.start(key=key)
        images = positives.reshape(-1, *positives.shape[2:])
        if images.shape[1:] != (28, 28):
            raise ValueError(
                "images must have 28 × 28 pixels for an autoencoder, but got samples of shape "
                f"{images.shape[1:]}; use selection='free energy' with embedding='learned'."
            )
        return train_autoencoder(images, key=key, steps=self.autoencoder_iter)
