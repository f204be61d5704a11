"""`SpecialistMixture`: a density as a committee of experts on Gaussians."""

import warnings
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    validate_data,
)

from pinfactory import density
from pinfactory import settings as check
from pinfactory.callbacks import Callbacks, fingerprint
from pinfactory.core.training import Callback, Chunk, Run, Trained, run_chunks
from pinfactory.density import (
    Ascent,
    Mixture,
    Search,
    SearchState,
    Statistics,
    StoredSamples,
    StreamedSamples,
    Whitening,
)
from pinfactory.persistence import register

from .chunked import as_chunks, numbers, refuse_weights
from .density_model import DensityModel
from .table import Rows, distinct, is_array

# Least and largest total weight of the samples, and largest β₂ times that.
MIN_WEIGHT, MAX_WEIGHT, MAX_EVIDENCE = 1e-12, 1e12, 1e15


@register("SpecialistMixture")
@dataclass(kw_only=True, eq=False, repr=False)
class SpecialistMixture(DensityModel):
    """Estimate a density with one Gaussian for each expert, and a selector that assigns samples.

    Every expert is a Normal–Wishart distribution q_m(μ, Λ) over the mean and precision of a
    Gaussian (Section 3.2 of the paper). Selector and experts maximise

        Σ_x Σ_m p(m|x) { E_q[log N(x|μ, Λ⁻¹)] − 1/β₁ log p(m|x)/p(m) } − 1/β₂ Σ_m KL(q_m‖p₀)

    in turns, each in closed form. With β₁ = β₂ = 1 this is the variational bound of the evidence.
    The density is the experts' joint prediction, a mixture of Student-t distributions. How many
    experts there are is found: those that are not worth what they cost are merged, and the busiest
    comes first. What is found depends on neither the order of the rows nor the units of the
    features, but for rounding: a score changes by the logarithm of the units, to about five digits.

    Data frames of pandas, polars and Arrow are taken as they are, with categories, dates and
    missing values. A missing value is one more thing that is not known of a sample: `fit` finds
    its best posterior for every expert, a Gaussian, beside all else that is found, and questions
    are answered by the exact marginals of what is known. Categories are numbers here, an indicator
    for each but the first. What was done to the columns is in `encoding_`; means, covariances and
    samples are those of the features it names.

    Parameters
    ----------
    n_experts : int, default=8
        How many experts there are at the most; superfluous ones end with weight zero.
    beta_selector : float, default=1.0
        β₁, the selector's resource. 1 gives the posterior of a mixture, larger values a harder
        partition: the partition is found with β₁ = 1 and then hardened. Above 10⁶ it is 10⁶.
    beta_expert : float, default=1.0
        β₂, the experts' resource: large values let them follow the data, small ones keep them close
        to their prior p₀.
    df_prior : float, optional
        ν₀ of p₀, above D − 1; by default D, the number of features.
    strength_prior : float, optional
        λ₀ of p₀: how many samples the prior mean counts for. By default 0.01, or less if clusters
        are so far apart that even this would pull them.
    neglect : bool, default=True
        Whether superfluous experts are merged, and others split.
    tol : float, default=1e-4
        Stop when an iteration raises the objective by less, in nats per sample.
    max_iter : int, default=200
        Iterations at the most, on each part of the data.
    n_init : int, default=1
        Starts that are tried on the first few thousand samples; the best goes on.
    warm_start : bool, default=False
        Whether `fit` continues from the last solution.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness.

    Attributes
    ----------
    weights_ : ndarray of shape (n_experts,)
        p(m), the largest first after `fit`, zero for experts that are not in use.
    means_ : ndarray of shape (n_experts, n_features)
        E[μ] of every expert.
    covariances_, precisions_ : ndarray of shape (n_experts, n_features, n_features)
        E[Λ]⁻¹ and E[Λ].
    information_ : Information
        Bits processed by selector and experts.
    effective_experts_ : float
        2^H(M), the effective number of experts in use.
    lower_bound_ : float
        The objective per sample, in nats.
    converged_ : bool
        Whether the last ascent met `tol`.
    n_iter_ : int
        Iterations taken in all.
    n_features_in_, feature_names_in_
        As in scikit-learn.
    encoding_ : Encoding
        What was done to the columns of a data frame.

    Examples
    --------
    >>> import numpy as np
    >>> from pinfactory import SpecialistMixture
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(600, 2)) + 6 * random.integers(0, 2, size=(600, 1))
    >>> mixture = SpecialistMixture(n_experts=6, random_state=0).fit(X)
    >>> int(np.sum(mixture.weights_ > 0))
    2
    >>> mixture.score_samples(X).shape
    (600,)
    """

    n_experts: int = field(default=8, kw_only=False)
    beta_selector: float = 1.0
    beta_expert: float = 1.0
    df_prior: float | None = None
    strength_prior: float | None = None
    neglect: bool = True
    tol: float = 1e-4
    max_iter: int = 200
    n_init: int = 1
    warm_start: bool = False
    verbose: bool = False
    random_state: Any = None
    _attributes = (
        *("n_features_in_", "feature_names_in_", "n_experts_", "n_iter_", "converged_"),
        *("lower_bound_", "encoding_"),
    )
    _optional_attributes = ("feature_names_in_", "encoding_")
    # `max_iter` bounds each ascent, not the whole: another one is another search.
    _may_differ = ("verbose", "warm_start")
    _may_be_minus_infinity = (".experts.log_weight",)

    # -------------------------------------------------------------------------------- training

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        callbacks: Callbacks = None,
        checkpoint: str | Path | None = None,
    ) -> "SpecialistMixture":
        """Estimate the density of the samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples, an array or a data frame, which may have missing values. Those that need
            not fit into memory may be a `numpy.memmap`, the path of Parquet files, an Arrow data
            set, a Dask array or data frame, or any `pinfactory.estimators.chunked.LocalChunks`.
        y
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts, if they are in memory: weight 2 is the same as the sample
            twice. If their sum is above 10¹² or below 10⁻¹², all are scaled to that.
        callbacks
            Called after every few iterations; see `pinfactory.callbacks`. A step is an iteration.
        checkpoint : path, optional
            A file that holds the search so far. If it exists, the search goes on from there, as
            long as settings and data are the same.

        Returns
        -------
        self
        """
        with self._learning():
            known = self.state_ if self.warm_start and hasattr(self, "state_") else None
            whitening, samples, weight, data = self._read(X, sample_weight, known)
            search, state = self._begin(whitening, samples, weight, known)

            def advance(run: Run[SearchState]) -> Chunk | None:
                after = search.advance(run.state)
                if after is None:
                    return None
                objective = float(after.trial.objective) + whitening.log_det
                info = {"objective": np.asarray(objective)}
                return Chunk(Run(run.key, jnp.asarray(after.n_iter), after, None), info)

            def training(run: Run, watching: list[Callback]) -> Trained:
                return run_chunks(advance, run, None, watching)

            identity = None
            if checkpoint is not None:
                before = () if known is None else jax.tree.leaves(known.statistics)
                identity = {"data": fingerprint(*data), "start": fingerprint(*before)}
            run = Run(_key(), jnp.asarray(0), state, None)
            trained = self._watched(
                training, run, callbacks, checkpoint=checkpoint, identity=identity
            )
            state, self.history_ = trained.run.state, trained.history
            converged = state.converged and trained.ending == "stale"
            self.n_iter_, self.converged_ = state.n_iter, converged
            best, beta = state.best.ordered(), state.beta_selector
            entropy = search.conditional_entropy(best, beta, state.n_blocks)
            self._finish(whitening, search, best, best.statistics, beta, entropy)
        if not converged:
            warnings.warn(
                f"The objective still rose by more than tol={self.tol} in the last iteration: "
                f"`max_iter` should be more than {self.max_iter}, or `tol` larger.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "SpecialistMixture":
        """Go on learning from a batch of samples, each seen once.

        The first batch sets the coordinates, the prior and the start, so it should be a fair sample
        with many more rows than experts. Later ones are added to running statistics in which old
        batches fade, because their responsibilities were worse. Experts are merged where that is
        better for all batches together, and split where it is better for a batch on its own.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.

        Returns
        -------
        self
        """
        with self._learning():
            known = getattr(self, "state_", None)
            X, rows = self._checked(X, sample_weight, reset=known is None)
            whitening = self._coordinates(X, rows, known)
            samples = density.StoredSamples.of(whitening, X, rows)
            search, state = self._begin(whitening, samples, float(np.sum(rows[1])), known)
            if known is None:
                # Batches harden the partition as they come, so the search need not.
                soft = replace(search, beta_selector=search.soft)
                state = soft.run(state)
                start = state.best
                best = search.single_step(start.statistics, start.prior, self.beta_selector)
                best = best.ordered()
                statistics = best.statistics
                self.converged_ = state.converged
            else:
                random = np.random.RandomState(state.seed) if self.neglect else None
                prior = known.hyper.prior
                best, statistics = density.update_online(search, known.statistics, prior, random)
            self.n_iter_ = getattr(self, "n_iter_", 0) + 1
            n_blocks = search.samples.n_blocks
            entropy = search.conditional_entropy(best, self.beta_selector, n_blocks)
            self._finish(whitening, search, best, statistics, self.beta_selector, entropy)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the index of the most responsible expert for each sample."""
        return self.fit(X, y, sample_weight).predict(X)

    # ----------------------------------------------------------------------------------- inside

    def _read(
        self, X: Any, sample_weight: Any, known: Mixture | None
    ) -> tuple[Whitening, StoredSamples | StreamedSamples, float, tuple[Any, ...]]:
        """Return coordinates, samples, their weight, and what tells them from others."""
        if is_array(X) or (chunks := as_chunks(X)) is None:
            X, rows = self._checked(X, sample_weight, reset=True)
            whitening = self._coordinates(X, rows, known)
            samples = density.StoredSamples.of(whitening, X, rows)
            return whitening, samples, float(np.sum(rows[1])), (X, *rows)
        refuse_weights(sample_weight)
        self._check_settings()
        self.__dict__.pop("encoding_", None)
        example = validate_data(self, chunks.example, reset=True, dtype=np.float64)
        self._check_df_prior(example.shape[1])
        whitening, large, weight = density.stream(numbers(chunks), known and known.whitening)
        return whitening, large, weight, (*large.first(), weight)

    def _check_settings(self) -> None:
        check.integer("n_experts", self.n_experts, 1)
        check.integer("max_iter", self.max_iter, 1)
        check.integer("n_init", self.n_init, 1)
        check.number("tol", self.tol, 0.0)
        check.number("beta_selector", self.beta_selector, 0.0, open_low=True)
        check.number("beta_expert", self.beta_expert, 0.0, open_low=True)
        if self.strength_prior is not None:
            check.number("strength_prior", self.strength_prior, 0.0, open_low=True)

    def _check_df_prior(self, d: int) -> None:
        if self.df_prior is not None:
            check.number("df_prior", self.df_prior, d - 1.0, open_low=True)

    def _checked(self, X: Any, sample_weight: Any, *, reset: bool) -> tuple[np.ndarray, Rows]:
        """Return checked samples, and the distinct ones among them."""
        self._check_settings()
        # A batch may have one row, but one row has no covariance.
        X = self._numbers(X, reset=reset, ensure_min_samples=2 if reset else 1)
        self._check_df_prior(X.shape[1])
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        rows = distinct(X, np.empty((len(X), 0)), _limited(weight))
        missing = np.isnan(X)
        if not missing.any():
            return X, Rows(*density.canonical_order(X, rows))
        mean = np.where(missing, 0.0, X).sum(axis=0) / np.maximum((~missing).sum(axis=0), 1)
        filled = np.column_stack([np.where(missing, mean, X), missing])
        return X, Rows(*density.canonical_order(filled, rows))

    def _coordinates(self, X: np.ndarray, rows: Rows, known: Mixture | None) -> Whitening:
        """Return those of a mixture that is known, or those that fit the samples."""
        if known is None:
            return Whitening.of(X, rows)
        if X.shape[1] != len(known.whitening.location):
            raise ValueError(
                f"The samples that a fit goes on with must have {len(known.whitening.location)} "
                f"features, but got {X.shape[1]}: set warm_start=False for other columns."
            )
        if np.isnan(X).any() and not known.whitening.is_diagonal:
            raise ValueError(
                "The samples that a fit goes on with must have no missing values if the first ones "
                "had none: fit anew, or begin with a batch that has some."
            )
        return known.whitening

    def _begin(
        self,
        whitening: Whitening,
        samples: StoredSamples | StreamedSamples,
        weight: float,
        known: Mixture | None,
    ) -> tuple[Search, SearchState]:
        """Return a search, and where it starts."""
        random = check_random_state(self.random_state)
        # Beyond so many samples' worth of evidence single precision cannot tell any difference.
        beta_expert = min(self.beta_expert, MAX_EVIDENCE / weight)
        if known is None:
            found = density.starts(samples.first(), whitening, random, self.n_experts, self.n_init)
            d = len(whitening.location)
            df = float(d) if self.df_prior is None else self.df_prior
            prior = density.common_prior(found, df, self.strength_prior)
            starts = density.to_device(found)
        else:
            prior = known.hyper.prior
            starts = jax.tree.map(lambda leaf: np.asarray(leaf)[None], known.statistics)
        search = Search(
            samples,
            starts,
            self.beta_selector,
            beta_expert,
            tol=self.tol,
            max_iter=self.max_iter,
            neglect=self.neglect,
        )
        return search, search.begin(prior, int(random.randint(2**31 - 1)))

    def _finish(
        self,
        whitening: Whitening,
        search: Search,
        best: Ascent,
        statistics: Statistics,
        beta_selector: float,
        entropy: float,
    ) -> None:
        """Keep what has been found; the statistics are those of all samples so far."""
        hyper = search.hyper(best.prior, beta_selector)
        self.state_ = Mixture(whitening, hyper, best.experts, best.fitted_to)
        self.n_experts_ = len(best.experts.log_weight)
        self.information_ = density.mixture_information(best, statistics, entropy)
        # KL(q‖p₀) counts once for all samples so far, of which the last pass may have used a few.
        price = np.asarray(best.divergence, float).sum() / float(hyper.beta_expert)
        total_utility = float(best.value) / np.asarray(best.statistics.mass, float).sum()
        self.lower_bound_ = total_utility - price / np.asarray(statistics.mass, float).sum()
        self.lower_bound_ += whitening.log_det

    def _untrained(self) -> Mixture:
        return Mixture.zeros(self.n_experts_, self._n_inputs)

    def _check_state(self) -> None:
        self.state_.check()


@cache
def _key() -> Key[Array, " 1"]:
    """Return the key of a run that draws nothing from it."""
    return jax.random.key(0)[None]


def _limited(weight: np.ndarray) -> np.ndarray:
    """Return weights whose total is within the limits that single precision can tell apart."""
    relative = weight / weight.max()
    total = float(weight.max()) * float(relative.sum())
    limited = min(max(total, MIN_WEIGHT), MAX_WEIGHT)
    return weight if total == limited else relative * (limited / float(relative.sum()))
