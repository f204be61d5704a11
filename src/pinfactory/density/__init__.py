"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""

from ._ascent import Ascent, ascend
from ._experts import Experts, Prices, sampled_utility, utility, whitened
from ._fitting import Samples, Search, common_prior, starts
from ._frame import Frame
from ._information import MixtureInformation
from ._mixture import Mixture
from ._seeding import hard_statistics
from ._statistics import Blocks, Statistics, blend, single, to_device, to_host

__all__ = [
    "Ascent",
    "Blocks",
    "Experts",
    "Frame",
    "Mixture",
    "MixtureInformation",
    "Prices",
    "Samples",
    "Search",
    "Statistics",
    "ascend",
    "blend",
    "common_prior",
    "hard_statistics",
    "sampled_utility",
    "single",
    "starts",
    "to_device",
    "to_host",
    "utility",
    "whitened",
]
