"""Convolutional networks for small images, fast on ordinary processors.

Images have the shape (height, width), or (height, width, channels) for one or more colours.
"""

from .autoencoder import Autoencoder, Encoder, Reconstruction, train_autoencoder
from .blocks import SAMPLES, FourBlocks, OneBlock
from .convolution import Convolution, average_pool, max_pool, patches

__all__ = [
    "SAMPLES",
    "Autoencoder",
    "Convolution",
    "Encoder",
    "FourBlocks",
    "OneBlock",
    "Reconstruction",
    "average_pool",
    "max_pool",
    "patches",
    "train_autoencoder",
]
