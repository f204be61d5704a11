"""Convolutional networks for small images, fast on ordinary processors."""

from ._adapted import AdaptedImages
from ._autoencoder import Autoencoder, train_autoencoder
from ._blocks import SAMPLES, FourBlocks, OneBlock
from ._convolution import Convolution, average_pool, max_pool, patches
from ._experts import one_block_experts
from ._image_specialists import ImageSpecialists

__all__ = [
    "SAMPLES",
    "AdaptedImages",
    "Autoencoder",
    "Convolution",
    "FourBlocks",
    "ImageSpecialists",
    "OneBlock",
    "average_pool",
    "max_pool",
    "one_block_experts",
    "patches",
    "train_autoencoder",
]
