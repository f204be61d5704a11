"""The methods that Section 6.2 compares with, as Appendix A describes them."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from pinfactory import networks
from pinfactory.baselines import MAML, MatchingNetworks
from pinfactory.baselines.metric import MatchingModel
from pinfactory.meta.build import headed
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import Samples
from pinfactory.persistence import register
from pinfactory.vision import OneBlock

from .algorithm_1 import PlainBlock

# "a single convolutional block followed by a fully connected layer with 64 units and a ReLU"
UNITS = 64


class DenseBlock(eqx.Module):
    """The block of the paper's experts, and a layer of ReLU units."""

    block: PlainBlock
    layer: eqx.nn.Linear

    def __call__(self, image: Array, *, key: Key[Array, ""] | None = None) -> Float[Array, " f"]:
        return jax.nn.relu(self.layer(self.block(image)))


class CosineModel(MatchingModel):
    """Weights are a softmax over cosines themselves, which nothing scales."""

    def __call__(self, support: Samples, query: Float[Array, "q ..."]) -> Float[Array, "q ways"]:
        plain = jnp.asarray(-np.log(UNITS), jnp.float32)
        return MatchingModel.__call__(
            eqx.tree_at(lambda m: m.log_scale, self, plain), support, query
        )


def dense_network(
    settings: Any, images: np.ndarray, outputs: int, key: Key[Array, ""]
) -> HeadedNetwork:
    """Return the network of Appendix A."""
    for name in ("transductive", "strided"):
        if getattr(settings, name):
            raise ValueError(f"`{name}` must be False for one block, but got True.")
    if settings.blocks != 1:
        raise ValueError(f"`blocks` must be 1, as in the appendix, but got {settings.blocks}.")
    keys = jax.random.split(key, 3)
    block = PlainBlock(OneBlock.start(images, key=keys[0]))
    size = eqx.filter_eval_shape(block, jnp.zeros(images.shape[1:])).size
    layer: Any = networks.linear(size, UNITS, key=keys[1])
    return headed(DenseBlock(block, layer), UNITS, outputs, keys[2])


def constant_rate(rate: float, steps: int) -> float:
    """Return a learning rate that stays as it is."""
    return rate


@register("paper.MAML")
@dataclass(kw_only=True, eq=False, repr=False)
class PaperMAML(MAML):
    """MAML with one block and 64 units; made by `pinfactory.paper.maml`."""

    _build_network = staticmethod(dense_network)
    _schedule = staticmethod(constant_rate)
    _zero_head = False


@register("paper.MatchingNetworks")
@dataclass(kw_only=True, eq=False, repr=False)
class PaperMatchingNetworks(MatchingNetworks):
    """Matching Networks of the same network; made by `pinfactory.paper.matching_networks`."""

    _build_network = staticmethod(dense_network)
    _schedule = staticmethod(constant_rate)
    _comparison = CosineModel


# "We train all networks using Adam with a learning rate of 3e-4", "a meta-batch size of 16"
_ADAM: dict[str, Any] = {"learning_rate": 3e-4, "batch_size": 16, "max_iter": 10_000}


def maml(**changes: Any) -> PaperMAML:
    """Return the paper's MAML: α = 0.05, one inner step in training, ten in a new task.

    `changes` are other settings of `pinfactory.baselines.MAML`; the number of training steps is
    not in the paper.
    """
    settings = {"inner_rate": 0.05, "inner_steps": 1, "test_steps": 10}
    return PaperMAML(**_ADAM | settings | changes)


def matching_networks(**changes: Any) -> PaperMatchingNetworks:
    """Return the paper's Matching Networks; arguments as in `maml`."""
    return PaperMatchingNetworks(**_ADAM | changes)
