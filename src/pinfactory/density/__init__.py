"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""

from ._ascent import Ascent, ascend, ascend_best
from ._experts import Experts, Prices, sampled_utility, utility, whitened
from ._fitting import Samples, Search, common_prior, starts
from ._frame import Frame
from ._mixture import Mixture
from ._seeding import hard_statistics
from ._statistics import Blocks, Exact, Statistics, blend, to_host, to_single
from ._stream import follow

__all__ = [
    "Ascent",
    "Blocks",
    "Exact",
    "Experts",
    "Frame",
    "Mixture",
    "Prices",
    "Samples",
    "Search",
    "Statistics",
    "ascend",
    "ascend_best",
    "blend",
    "common_prior",
    "follow",
    "hard_statistics",
    "sampled_utility",
    "starts",
    "to_host",
    "to_single",
    "utility",
    "whitened",
]
