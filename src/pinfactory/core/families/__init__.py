"""Posterior families: the distributions a selector or an expert may answer with.

Every family is a pytree whose leading axes are batch axes; the event axes come last. Densities,
entropies and divergences are in nats.

`merge` returns, for weighted members q₁ … qₙ, the member of the same family that minimises
Σᵢ wᵢ KL(qᵢ ‖ q). This is the best prior the family can offer for these posteriors, and it is the
one whose expected sufficient statistics are the weighted mean of theirs: the mean of the
probabilities for a Categorical, moment matching for a Gaussian. All families compute it with
centred statistics, so that a mean of 1e6 with a deviation of 1 loses no digits.
"""

from ._family import LOG_2PI, Categorical, Family, Gaussian
from ._normal_wishart import NormalWishart, StudentT

__all__ = ["LOG_2PI", "Categorical", "Family", "Gaussian", "NormalWishart", "StudentT"]
