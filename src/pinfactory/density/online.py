"""Learning from batches that are used once."""

import numpy as np

from .ascent import Ascent
from .merging import best_pairs, fitted_statistics, may_merge, merged
from .search import Search
from .splitting import split_expert
from .statistics import Statistics, blend

# How fast older batches fade: a batch that is the share s of all samples so far counts s^0.6.
# Online EM converges with exponents between ½ and 1.
DECAY = 0.6


def update_online(
    search: Search,
    known: Statistics,
    beta_selector: float,
    random: np.random.RandomState | None,
) -> Statistics:
    """Add a batch, the samples of `search`, to the statistics of earlier ones; return both.

    With a source of randomness superfluous experts are merged and unused ones get samples, with the
    resources of the search; everything else happens with the resource `beta_selector`.
    """
    beta_before = float(search.hyper.beta_selector)
    search.hyper = search.hyper.with_beta_selector(beta_selector)
    batch = search.single_step(known).statistics
    before, now = (float(np.asarray(part.mass).sum()) for part in (known, batch))
    rate, total = (now / (before + now)) ** DECAY, before + now
    statistics = blend(known, batch, np.float32(rate), np.float32(total))
    if random is not None:
        search.hyper = search.hyper.with_beta_selector(beta_before)
        statistics = _split(search, _merge(search, statistics), random)
        search.hyper = search.hyper.with_beta_selector(beta_selector)
    search.best = search.single_step(statistics)
    return statistics


def _merge(search: Search, statistics: Statistics) -> Ascent:
    """Merge experts as long as that raises the free energy.

    None is removed otherwise: a batch may lack the samples of an expert.
    """
    while True:
        ascent = search.single_step(statistics)
        known = fitted_statistics(ascent)
        if np.count_nonzero(known.mass) < 2:
            return ascent
        pairs = best_pairs(known, search.hyper)
        if not may_merge(known, pairs):
            return ascent
        reduced = merged(known, ascent, search.hyper, search.merge_effects(ascent, pairs), pairs)
        if reduced is None:
            return ascent
        statistics = reduced


def _split(search: Search, ascent: Ascent, random: np.random.RandomState) -> Statistics:
    """Give one unused expert a part of another's samples, if that is better on the batch alone."""
    known, samples = fitted_statistics(ascent), search.samples.first()
    more = split_expert(ascent.experts, known, search.hyper, *samples, random, extrapolate=False)
    return ascent.fitted_to if more is None else more
