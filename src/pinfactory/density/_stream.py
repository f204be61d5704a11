"""Learning from batches that are seen once."""

import numpy as np

from ._ascent import Ascent
from ._fitting import Search
from ._merging import known_to, likely_pairs, may_merge, merged
from ._splitting import divided
from ._statistics import Statistics, blend

# How fast older batches fade: a batch that is the share s of all samples so far counts s^0.6.
# Online EM converges with exponents between ½ and 1.
FADING = 0.6


def follow(
    search: Search,
    known: Statistics,
    beta_selector: float,
    random: np.random.RandomState | None,
) -> Statistics:
    """Add a batch, the samples of `search`, to what is known of earlier ones; return both.

    With a source of randomness superfluous experts are dismissed and idle ones hired, at the prices
    of the search; everything else happens with the resource `beta_selector`.
    """
    soft = float(search.prices.beta_selector)
    search.prices = search.prices.hardened(beta_selector)
    batch = search.look(known).seen
    before, now = (float(np.asarray(part.mass).sum()) for part in (known, batch))
    rate, total = (now / (before + now)) ** FADING, before + now
    statistics = blend(known, batch, np.float32(rate), np.float32(total))
    if random is not None:
        search.prices = search.prices.hardened(soft)
        statistics = _with_more(search, _with_fewer(search, statistics), random)
        search.prices = search.prices.hardened(beta_selector)
    search.best = search.look(statistics)
    return statistics


def _with_fewer(search: Search, statistics: Statistics) -> Ascent:
    """Merge experts as long as that raises the free energy.

    None is sent away otherwise: a batch may lack the samples that an expert is there for.
    """
    while True:
        ascent = search.look(statistics)
        known = known_to(ascent)
        if np.count_nonzero(known.mass) < 2:
            return ascent
        pairs = likely_pairs(known, search.prices)
        if not may_merge(known, pairs):
            return ascent
        fewer = merged(known, ascent, search.prices, search.survey(ascent, pairs), pairs)
        if fewer is None:
            return ascent
        statistics = fewer


def _with_more(search: Search, ascent: Ascent, random: np.random.RandomState) -> Statistics:
    """Let one idle expert take over a part of another's samples, if the batch alone says so."""
    known, samples = known_to(ascent), search.samples.first()
    more = divided(ascent.experts, known, search.prices, *samples, random, extrapolate=False)
    return ascent.taught if more is None else more
