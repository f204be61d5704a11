"""What a mixture tells of the information it processes."""

from dataclasses import dataclass

import numpy as np

from pinfactory.core.information import BITS_PER_NAT

from ._ascent import Ascent


@dataclass(frozen=True)
class MixtureInformation:
    """Information a mixture processes, in bits, measured on the data it was fitted to.

    Attributes
    ----------
    selector
        I(X;M): what the selector needs to know of a sample to choose an expert.
    experts
        Σ_m KL(q_m‖p₀)/N: what the experts learned about their Gaussians, per sample.
    per_expert
        KL(q_m‖p₀): what each expert learned in all, zero for those nobody asks.
    responsibility
        p(m): the share of the data each expert handles.
    effective_experts
        2^H(M): the number of equally busy experts that would be as diverse.
    """

    selector: float
    experts: float
    per_expert: np.ndarray
    responsibility: np.ndarray
    effective_experts: float

    @classmethod
    def of(cls, ascent: Ascent, beta_selector: float) -> "MixtureInformation":
        """Translate what the last look at the data has shown."""
        mass = np.asarray(ascent.seen.mass, float)
        share = mass / mass.sum()
        asked = share > 0
        log_share = np.log(share, where=asked, out=np.zeros_like(share))
        # The mean of log p(m|x)/p(m), from which the same with the exact marginal follows.
        paid = beta_selector * (float(ascent.utility) - float(ascent.value)) / mass.sum()
        log_weight = np.where(asked, np.asarray(ascent.experts.log_weight, float), 0.0)
        bits = np.maximum(np.asarray(ascent.divergence, float), 0.0) * BITS_PER_NAT
        return cls(
            max(0.0, paid - float(share @ (log_share - log_weight))) * BITS_PER_NAT,
            float(bits.sum() / mass.sum()),
            bits,
            share,
            float(np.exp(-share @ log_share)),
        )
