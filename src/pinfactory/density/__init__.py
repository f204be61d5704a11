"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""

from .ascent import Ascent, ascend, ascend_best
from .experts import (
    Blocks,
    Experts,
    HostStatistics,
    Hyperparameters,
    Statistics,
    blend,
    standardised,
    to_device,
    to_host,
    utility,
)
from .mixture import Mixture
from .samples import StoredSamples, Whitening, canonical_order
from .search import Search, SearchState, mixture_information, update_online
from .splitting import common_prior, partition_statistics, starts
from .streaming import Chunks, StreamedSamples, stream

__all__ = [
    "Ascent",
    "Blocks",
    "Chunks",
    "Experts",
    "HostStatistics",
    "Hyperparameters",
    "Mixture",
    "Search",
    "SearchState",
    "Statistics",
    "StoredSamples",
    "StreamedSamples",
    "Whitening",
    "ascend",
    "ascend_best",
    "blend",
    "canonical_order",
    "common_prior",
    "mixture_information",
    "partition_statistics",
    "standardised",
    "starts",
    "stream",
    "to_device",
    "to_host",
    "update_online",
    "utility",
]
