"""Convolutional experts for `MetaSpecialistClassifier`: tasks with any number of classes."""

from collections.abc import Callable

import equinox as eqx
import jax
from jaxtyping import Array, Key

from pinfactory import networks
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.looking import images_of, look_at
from pinfactory.meta.tasks import Tasks

from ._blocks import OneBlock

# Images whose moments normalise a block.
N_IMAGES = 1000


def one_block_experts(
    tasks: Tasks, *, filters: int = 32, pool: int = 5
) -> Callable[..., HeadedNetwork]:
    """Return a factory of experts with a convolutional block each and a linear head.

    Parameters
    ----------
    tasks
        A distribution of image tasks; stored statistics are those of its images.
    filters, pool
        As in `ImageSpecialists`.

    Examples
    --------
    ``MetaSpecialistClassifier(4, expert=one_block_experts(tasks))`` learns tasks of as many classes
    as `tasks` have.
    """
    images = images_of(look_at(tasks, 0))[:N_IMAGES]

    def expert(input_shape: tuple[int, ...], outputs: int, *, key: Key[Array, ""]) -> HeadedNetwork:
        if input_shape != images.shape[1:]:
            raise ValueError(
                f"samples must have the shape {images.shape[1:]} of the tasks that experts were "
                f"made for, but got {input_shape}."
            )
        keys = jax.random.split(key)
        block = OneBlock.start(images, key=keys[0], filters=filters, pool=pool)
        head = networks.linear(block.size, outputs, key=keys[1])
        assert isinstance(head, eqx.nn.Linear)
        return HeadedNetwork(block, head)

    return expert
