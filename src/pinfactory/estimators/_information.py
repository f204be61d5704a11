"""What a committee tells of the information it processes."""

from dataclasses import dataclass

import numpy as np

from pinfactory.core.information import Estimate, Information


@dataclass(frozen=True)
class CommitteeInformation:
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

    selector: float
    experts: float
    overall: float
    per_expert: np.ndarray
    responsibility: np.ndarray
    effective_experts: float

    @classmethod
    def of(cls, measured: Information, overall: Estimate | None) -> "CommitteeInformation":
        """Translate a measurement; `overall` stands in where there is no closed form."""
        return cls(
            float(measured.selectors[0]),
            float(measured.experts),
            float(measured.overall if overall is None else overall.value),
            np.asarray(measured.per_expert, float),
            np.asarray(measured.responsibility, float),
            float(measured.effective_experts),
        )
