"""What committees and mixtures tell of the information they process."""

from dataclasses import dataclass

import numpy as np

from pinfactory.core.information import BITS_PER_NAT, Estimate, Information
from pinfactory.density import Ascent, Statistics


@dataclass(frozen=True, kw_only=True)
class _Processed:
    """What all of them tell, in bits."""

    selector: float
    experts: float
    per_expert: np.ndarray
    responsibility: np.ndarray
    effective_experts: float


@dataclass(frozen=True, kw_only=True)
class CommitteeInformation(_Processed):
    """Information a committee processes, in bits, measured on the data it was fitted to.

    Attributes
    ----------
    selector
        I(X;M): what the selector needs to know of an input to choose an expert.
    experts
        I(X;Y|M): what the chosen expert needs to know of it to answer. For Gaussian answers this
        is what they pay with their Gaussian prior, an upper bound.
    overall
        I(X;Y): what the committee's answer tells of the input.
    per_expert
        I(X;Y|M=m) for every expert.
    responsibility
        p(m): the share of the data each expert handles.
    effective_experts
        2^H(M): the number of equally busy experts that would be as diverse.
    """

    overall: float

    @classmethod
    def of(cls, measured: Information, overall: Estimate | None) -> "CommitteeInformation":
        """Translate a measurement; `overall` stands in where there is no closed form."""
        return cls(
            selector=float(measured.selectors[0]),
            experts=float(measured.experts),
            overall=float(measured.overall if overall is None else overall.value),
            per_expert=np.asarray(measured.per_expert, float),
            responsibility=np.asarray(measured.responsibility, float),
            effective_experts=float(measured.effective_experts),
        )

    def stages(self) -> dict[str, float]:
        """Return the bits for each input of every stage, under its name."""
        return {
            "selector\nI(X;M)": self.selector,
            "experts\nI(X;Y|M)": self.experts,
            "overall\nI(X;Y)": self.overall,
        }

    per_expert_label = "bits for each input, I(X;Y|M=m)"


@dataclass(frozen=True, kw_only=True)
class MixtureInformation(_Processed):
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

    @classmethod
    def of(
        cls, ascent: Ascent, statistics: Statistics, beta_selector: float
    ) -> "MixtureInformation":
        """Translate what the last look at the data has shown.

        `statistics` are those of all samples so far, of which the last look may have been at a few.
        """
        mass = np.asarray(statistics.mass, float)
        share = mass / mass.sum()
        asked = share > 0
        log_share = np.log(share, where=asked, out=np.zeros_like(share))
        # The mean of log p(m|x)/p(m), from which the same with the exact marginal follows.
        seen = float(np.asarray(ascent.seen.mass, float).sum())
        paid = beta_selector * (float(ascent.utility) - float(ascent.value)) / seen
        log_weight = np.where(asked, np.asarray(ascent.experts.log_weight, float), 0.0)
        bits = np.maximum(np.asarray(ascent.divergence, float), 0.0) * BITS_PER_NAT
        return cls(
            selector=max(0.0, paid - float(share @ (log_share - log_weight))) * BITS_PER_NAT,
            experts=float(bits.sum() / mass.sum()),
            per_expert=bits,
            responsibility=share,
            effective_experts=float(np.exp(-share @ log_share)),
        )

    def stages(self) -> dict[str, float]:
        """Return the bits for each sample of every stage, under its name."""
        return {"selector\nI(X;M)": self.selector, "experts\nΣKL(q‖p₀)/N": self.experts}

    per_expert_label = "bits learned in all, KL(q‖p₀)"
