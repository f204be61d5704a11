"""Density estimation: experts that are distributions over Gaussians (Sections 3.2 and 4.2)."""

from ._ascent import Ascent, Blocks, Statistics, ascend, blend, single
from ._experts import Experts, Prices, sampled_utility, utility, whitened
from ._fitting import Samples, Search, common_prior, starts
from ._frame import Frame
from ._information import MixtureInformation
from ._mixture import Mixture

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
    "sampled_utility",
    "single",
    "starts",
    "utility",
    "whitened",
]
