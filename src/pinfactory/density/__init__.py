"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""

from .ascent import Ascent, ascend, ascend_best
from .experts import Experts, Hyperparameters, standardised, utility
from .kmeans import partition_statistics
from .mixture import Mixture
from .online import update_online
from .search import Samples, Search, common_prior, starts
from .statistics import Blocks, HostStatistics, Statistics, blend, to_device, to_host
from .whitening import Whitening, canonical_order

__all__ = [
    "Ascent",
    "Blocks",
    "Experts",
    "HostStatistics",
    "Hyperparameters",
    "Mixture",
    "Samples",
    "Search",
    "Statistics",
    "Whitening",
    "ascend",
    "ascend_best",
    "blend",
    "canonical_order",
    "common_prior",
    "partition_statistics",
    "standardised",
    "starts",
    "to_device",
    "to_host",
    "update_online",
    "utility",
]
