"""What an agent tells of the information it processes."""

from dataclasses import dataclass

import numpy as np

from pinfactory.core.information import Information


@dataclass(frozen=True)
class AgentInformation:
    """Information an agent processes, in bits, measured on the states it last visited.

    Attributes
    ----------
    selector
        I(S;M): what the selector has to know of a state to choose an expert.
    experts
        I(S;A|M): what the chosen expert has to know of it to act; for box actions what it pays
        with its Gaussian prior, an upper bound.
    per_expert
        I(S;A|M=m) for every expert.
    responsibility
        p(m): the share of the states each expert handles.
    effective_experts
        2^H(M): the number of equally busy experts that would be as diverse.
    """

    selector: float
    experts: float
    per_expert: np.ndarray
    responsibility: np.ndarray
    effective_experts: float

    @classmethod
    def of(cls, measured: Information, n_experts: int) -> "AgentInformation":
        """Translate a measurement, less experts that may not act."""
        return cls(
            float(measured.selectors[0]),
            float(measured.experts),
            np.asarray(measured.per_expert, float)[:n_experts],
            np.asarray(measured.responsibility, float)[:n_experts],
            float(measured.effective_experts),
        )
