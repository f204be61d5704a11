"""The information that a mixture processes."""

import numpy as np

from pinfactory.core.information import BITS_PER_NAT, Information
from pinfactory.density import Ascent, Statistics


def mixture_information(
    ascent: Ascent, statistics: Statistics, conditional_entropy: float
) -> Information:
    """Return what the last pass over the data has shown, in bits for each sample.

    The selector's is I(X;M). The experts' is Σ_m KL(q_m‖p₀)/N: what they learned about their
    Gaussians, shared by all samples; that of one expert is shared by the samples it handles.
    `statistics` are those of all samples so far, of which the last pass may have been over a few;
    `conditional_entropy` is H(M|X) of the samples of the last pass, in nats.
    """
    mass = np.asarray(statistics.mass, float)
    share = mass / mass.sum()
    asked = share > 0
    log_share = np.log(share, where=asked, out=np.zeros_like(share))
    entropy = -float(share @ log_share)
    bits = np.maximum(np.asarray(ascent.divergence, float), 0.0) * BITS_PER_NAT
    return Information(
        selectors=(min(max(0.0, entropy - conditional_entropy), entropy) * BITS_PER_NAT,),
        experts=float(bits.sum() / mass.sum()),
        overall=float("nan"),
        per_expert=np.where(asked, bits / np.where(asked, mass, 1.0), 0.0),
        responsibility=share,
        effective_experts=float(np.exp(entropy)),
    )
