"""What the selector sees of a task: its positives, through a small convolutional network."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory.meta.embeddings import Embedding, Pooled, pooled
from pinfactory.meta.experts import TaskSelector
from pinfactory.meta.tasks import Samples

from ._autoencoder import Autoencoder
from ._convolution import Convolution

# Log-odds that stand for certainty and still have finite logarithms.
CERTAIN = 30.0


class PositivesEncoder(Embedding):
    """Three strided convolutions of every positive, and the maximum over the positives.

    Shaped as the encoder of the paper's autoencoder (Appendix A), but wider, and trained with
    the selector for what tells experts apart instead of for what gives the image back.
    """

    convolutions: tuple[Convolution, ...]
    width: int = eqx.field(static=True)

    @classmethod
    def start(cls, *, key: Key[Array, ""], side: int = 28) -> "PositivesEncoder":
        """Begin with random filters."""
        keys = jax.random.split(key, 3)
        sizes = ((1, 16), (16, 32), (32, 16))
        convolutions = [
            Convolution.start(a, b, key=k, stride=2) for (a, b), k in zip(sizes, keys, strict=True)
        ]
        return cls(tuple(convolutions), (-(-side // 8)) ** 2 * 16)

    @property
    def size(self) -> int:
        return self.width

    def __call__(self, support: Samples) -> Float[Array, " e"]:
        x = support.x[..., None]
        for convolution in self.convolutions:
            x = jax.nn.leaky_relu(convolution(x))
        code = pooled(x.reshape(len(x), -1), support.y == 1, "max")
        return code * jnp.sqrt(self.width / (jnp.sum(code**2) + 1e-6))


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
    """Choose by the bottleneck of an autoencoder, pooled over positives as in the paper."""
    fixed = NearestCentre(jax.device_put(centres.astype(np.float32)))
    return TaskSelector(Pooled(autoencoder, centres.shape[1], "max", 1), fixed)


def pooled_codes(
    network: Autoencoder, images: Float[np.ndarray, "n k h w"]
) -> Float[np.ndarray, "n e"]:
    """Return the bottlenecks of n sets of k images, each by its maximum over the set."""
    return np.asarray(eqx.filter_jit(network)(jax.device_put(images))).max(axis=1)
