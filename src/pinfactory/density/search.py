"""From a start to experts: ascent over more and more samples, merging and splitting."""

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import jax
import numpy as np

from pinfactory.core.families import NormalWishart
from pinfactory.core.information import BITS_PER_NAT, Information

from .ascent import Ascent, ascend_best
from .experts import MAX_BETA_SELECTOR, Hyperparameters, Statistics, blend
from .merging import (
    best_pairs,
    fitted_statistics,
    may_merge,
    merged,
    penalised_objective,
)
from .samples import StoredSamples
from .splitting import split_expert
from .streaming import StreamedSamples

# Blocks between two returns to Python, where progress is shown and Ctrl-C takes effect.
BLOCKS_PER_CALL = 512
# How fast older batches of a stream fade: one that is the share s of all samples so far counts
# s^0.6. Online EM converges with exponents between ½ and 1.
DECAY = 0.6


class Stage(IntEnum):
    """What a search does next, or does now if an ascent is under way."""

    START = 0
    REDUCE = 1
    SPLIT = 2
    GROW = 3
    HARDEN = 4
    END = 5


class SearchState(NamedTuple):
    """Where a search is."""

    best: Ascent  # the solution so far
    trial: Ascent  # the ascent that is under way
    beta_selector: float  # the β₁ that `best` was found with
    seed: int  # where divisions are drawn from
    stage: int = int(Stage.START)  # what happens now
    taken: int = 0  # iterations of the trial; 0 if none is under way
    n_blocks: int = 1  # blocks of samples in use
    n_iter: int = 0  # iterations in all
    converged: bool = False  # whether the last ascent met `tol`


@dataclass(frozen=True)
class Search:
    """The search for the best experts, one compiled call after the other.

    It ascends from the best of the starts on the first block of samples, then on more and more
    blocks: most iterations are made on few. On each number of blocks experts are merged as long as
    that raises the free energy, and unused ones get a part of another's samples where that is
    better. All this happens with β₁ ≤ 1; in the end the partition is hardened.
    """

    samples: StoredSamples | StreamedSamples  # what experts are fitted to
    starts: Statistics  # statistics to start from, along the first axis
    # β₁ and β₂.
    beta_selector: float
    beta_expert: float
    # When an ascent ends.
    tol: float
    max_iter: int
    neglect: bool = True  # whether experts are merged and split

    def begin(self, prior: NormalWishart, seed: int) -> SearchState:
        """Return the state at the start."""
        trial = Ascent.start(jax.tree.map(lambda leaf: leaf[0], self.starts), prior)
        return SearchState(trial, trial, self.soft, seed)

    def advance(self, state: SearchState) -> SearchState | None:
        """Make one compiled call, with the decisions before and after it; None at the end."""
        if state.taken == 0:
            state = self._next_trial(state)
        if state.stage == Stage.END:
            return None
        if state.stage == Stage.START and state.taken == 0 and len(self.starts.mass) > 1:
            hyper = self.hyper(state.trial.prior, self.soft)
            most = np.int32(self._max_iterations(state))
            tol = np.float32(self.tol)
            trial, count = ascend_best(self.starts, hyper, self.samples.blocks, tol, most)
        else:
            beta = self.beta_selector if state.stage == Stage.HARDEN else self.soft
            trial = self._ascend(
                state.trial,
                self.hyper(state.trial.prior, beta),
                state.n_blocks,
                self._max_iterations(state),
            )
            count = trial.n_iter
        state = state._replace(
            trial=trial,
            taken=state.taken + int(trial.n_iter),
            n_iter=state.n_iter + int(count),
            converged=float(trial.change) < self.tol,
        )
        finished = state.converged or state.taken >= self.max_iter
        return self._decide(state) if finished else _kept(state, self.beta_selector)

    def run(self, state: SearchState) -> SearchState:
        """Search to the end."""
        while (after := self.advance(state)) is not None:
            state = after
        return state

    @property
    def soft(self) -> float:
        """β₁ as long as the partition is not hardened."""
        return min(self.beta_selector, 1.0)

    def hyper(self, prior: NormalWishart, beta_selector: float) -> Hyperparameters:
        """Return a prior with both resources."""
        beta = np.float32(min(beta_selector, MAX_BETA_SELECTOR))
        return Hyperparameters(prior, beta, np.float32(self.beta_expert))

    def single_step(
        self, statistics: Statistics, prior: NormalWishart, beta_selector: float
    ) -> Ascent:
        """Fit to the statistics, and pass over all samples once."""
        start, hyper = Ascent.start(statistics, prior), self.hyper(prior, beta_selector)
        return self._ascend(start, hyper, self.samples.n_blocks, 1)

    def conditional_entropy(self, ascent: Ascent, beta_selector: float, n_blocks: int) -> float:
        """Return H(M|X) of the first blocks, in nats."""
        beta = np.float32(min(beta_selector, MAX_BETA_SELECTOR))
        return self.samples.conditional_entropy(ascent.experts, beta, n_blocks)

    def _next_trial(self, state: SearchState) -> SearchState:
        """Return the state with the next ascent to make, or at the end."""
        stage, best, n_blocks, statistics = state.stage, state.best, state.n_blocks, None
        if stage in (Stage.START, Stage.END):
            return state
        if stage == Stage.REDUCE:
            statistics = self.reduced(best, n_blocks)
            stage = stage if statistics is not None else Stage.SPLIT
        if stage == Stage.SPLIT:
            # The first block suggests a split; all blocks decide whether it is kept.
            random = np.random.RandomState([state.seed, state.n_iter])
            statistics = self.divided(best, random, extrapolate=True)
            stage = stage if statistics is not None else Stage.GROW
        if stage == Stage.GROW:
            more = n_blocks < self.samples.n_blocks
            n_blocks = self.samples.grown(n_blocks)
            stage = stage if more else Stage.HARDEN
        if stage == Stage.HARDEN and self.beta_selector <= 1.0:
            return state._replace(stage=int(Stage.END))
        trial = Ascent.start(best.statistics if statistics is None else statistics, best.prior)
        return state._replace(trial=trial, stage=int(stage), n_blocks=n_blocks)

    def _decide(self, state: SearchState) -> SearchState:
        """Keep the finished trial or not, and go on to the next stage."""
        if state.stage == Stage.SPLIT:
            better = penalised_objective(state.trial) > penalised_objective(state.best)
            best = state.trial if better else state.best
            return state._replace(
                best=best, taken=0, stage=int(Stage.SPLIT if better else Stage.GROW)
            )
        state = _kept(state, self.beta_selector)
        if state.stage == Stage.HARDEN:
            after = Stage.END
        else:
            after = Stage.REDUCE if self.neglect else Stage.GROW
        return state._replace(best=state.trial, taken=0, stage=int(after))

    def _max_iterations(self, state: SearchState) -> int:
        """Return how many iterations to take at once."""
        return min(max(1, BLOCKS_PER_CALL // state.n_blocks), self.max_iter - state.taken)

    def _ascend(
        self, start: Ascent, hyper: Hyperparameters, n_blocks: int, max_iter: int
    ) -> Ascent:
        return self.samples.ascend(start, hyper, n_blocks, self.tol, max_iter)

    def reduced(self, best: Ascent, n_blocks: int) -> Statistics | None:
        """Return statistics with experts merged, None if none is superfluous."""
        known, hyper = fitted_statistics(best), self.hyper(best.prior, self.soft)
        if np.count_nonzero(known.mass) < 2:
            return None
        pairs = best_pairs(known, hyper)
        if not may_merge(known, pairs):
            return None
        effects = self.samples.merge_effects(best.experts, hyper, pairs, n_blocks)
        return merged(known, best, hyper, effects, pairs)

    def divided(
        self, best: Ascent, random: np.random.RandomState, *, extrapolate: bool
    ) -> Statistics | None:
        """Return statistics with an expert split by the first block; see `split_expert`."""
        known, hyper = fitted_statistics(best), self.hyper(best.prior, self.soft)
        first, missing = self.samples.first(), self.samples.first_missing()
        return split_expert(
            best.experts, known, hyper, *first, random, extrapolate=extrapolate, missing=missing
        )


def _kept(state: SearchState, beta_selector: float) -> SearchState:
    """Make an ascent that only improves on the best solution the best one, finished or not."""
    if state.stage == Stage.START:
        return state._replace(best=state.trial)
    if state.stage == Stage.HARDEN:
        return state._replace(best=state.trial, beta_selector=beta_selector)
    return state


# ------------------------------------------------------------------ batches that are used once


def update_online(
    search: Search, known: Statistics, prior: NormalWishart, random: np.random.RandomState | None
) -> tuple[Ascent, Statistics]:
    """Add a batch, the samples of `search`, to the statistics of earlier ones.

    With a source of randomness superfluous experts are merged and unused ones get samples, as long
    as the partition is soft.

    Returns
    -------
    ascent, statistics
        A pass over the batch with the new experts, and the statistics of all batches.
    """
    step = search.single_step(known, prior, search.beta_selector)
    before, now = (float(np.asarray(part.mass).sum()) for part in (known, step.statistics))
    rate, total = (now / (before + now)) ** DECAY, before + now
    statistics = blend(known, step.statistics, np.float32(rate), np.float32(total))
    prior = step.prior
    if random is not None:
        ascent = search.single_step(statistics, prior, search.soft)
        while (fewer := search.reduced(ascent, search.samples.n_blocks)) is not None:
            ascent = search.single_step(fewer, ascent.prior, search.soft)
        # Split where that is better on the batch alone.
        more = search.divided(ascent, random, extrapolate=False)
        statistics, prior = ascent.fitted_to if more is None else more, ascent.prior
    return search.single_step(statistics, prior, search.beta_selector), statistics


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
