"""What the selector sees of a task: its positives, through a small convolutional network."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory import networks
from pinfactory.meta.embeddings import Embedding, Pooled, pooled
from pinfactory.meta.experts import TaskSelector
from pinfactory.meta.tasks import Samples

from ._autoencoder import Autoencoder
from ._convolution import Convolution

# Log-odds that stand for certainty and still have finite logarithms.
CERTAIN = 30.0


Pool = Literal["max", "mean", "min"]


class PositivesEncoder(Embedding):
    """Three strided convolutions of every positive, pooled over the positives.

    Shaped as the encoder of the paper's autoencoder (Appendix A), but wider, and trained with
    the selector for what tells experts apart instead of for what gives the image back.
    """

    convolutions: tuple[Convolution, ...]
    width: int = eqx.field(static=True)
    pool: Pool = eqx.field(static=True, default="max")

    @classmethod
    def start(
        cls, *, key: Key[Array, ""], side: int = 28, pool: Pool = "max"
    ) -> "PositivesEncoder":
        """Begin with random filters."""
        keys = jax.random.split(key, 3)
        sizes = ((1, 16), (16, 32), (32, 16))
        convolutions = [
            Convolution.start(a, b, key=k, stride=2) for (a, b), k in zip(sizes, keys, strict=True)
        ]
        return cls(tuple(convolutions), (-(-side // 8)) ** 2 * 16, pool)

    @property
    def size(self) -> int:
        return self.width

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        x = support.x[..., None]
        for convolution in self.convolutions:
            x = jax.nn.leaky_relu(convolution(x))
        return of_fixed_length(pooled(x.reshape(len(x), -1), support.y == 1, self.pool))


class Bottleneck(Embedding):
    """The bottleneck of an autoencoder that stays as it is, pooled over the positives (Section 5).

    Of a fixed length, because its scale is whatever gives images back best.
    """

    code: Pooled

    @property
    def size(self) -> int:
        return self.code.size

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        return of_fixed_length(self.code(support))


def of_fixed_length(code: Float[Array, " e"]) -> Float[Array, " e"]:
    """Scale to a mean square of one."""
    return code * jnp.sqrt(len(code) / (jnp.sum(code**2) + 1e-6))


def learned(embedding: Embedding, n_experts: int, *, key: Key[Array, ""]) -> TaskSelector:
    """Choose by a network that is to be trained."""
    network: Any = networks.mlp(embedding.size, n_experts, (64,), networks.relu, key=key)
    # Logits of the order of one: experts part ways sooner.
    last = jax.device_put(3.0 * np.asarray(network.layers[-1].weight))
    return TaskSelector(embedding, eqx.tree_at(lambda n: n.layers[-1].weight, network, last))


class NearestCentre(eqx.Module):
    """A selector that is fixed: the expert whose centre is nearest to the embedding.

    Centres are found by k-means. It is what a learned selector has to beat.
    """

    centres: Float[Array, "m e"]

    def __call__(
        self, embedding: Float[Array, " e"], *, key: Key[Array, ""] | None = None
    ) -> Float[Array, " m"]:
        centres = jax.lax.stop_gradient(self.centres)
        distance = jnp.sum((embedding - centres) ** 2, axis=-1)
        return jnp.where(jnp.arange(len(centres)) == jnp.argmin(distance), CERTAIN, 0.0)


def nearest(autoencoder: Autoencoder, centres: Float[np.ndarray, "m e"]) -> TaskSelector:
    """Choose by the bottleneck of an autoencoder, averaged over positives.

    The centre nearest to an average is the one with the least sum of squared distances to all
    positives, so that centres stand for the same images whatever the number of shots. The paper's
    maximum moves with that number.
    """
    fixed = NearestCentre(jax.device_put(centres.astype(np.float32)))
    return TaskSelector(Pooled(autoencoder, centres.shape[1], "mean", 1), fixed)


def pooled_codes(
    network: Autoencoder, images: Float[np.ndarray, "n k h w"]
) -> Float[np.ndarray, "n e"]:
    """Return the bottlenecks of n sets of k images, each averaged over its set."""
    return np.asarray(eqx.filter_jit(network)(jax.device_put(images))).mean(axis=1)
