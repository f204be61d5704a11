"""`SpecialistMixture`: a density as a committee of experts on Gaussians."""

import warnings
from typing import Any, no_type_check

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data
from tqdm.auto import tqdm

from pinfactory import density
from pinfactory import settings as check
from pinfactory.density import Hyperparameters, Mixture, Whitening
from pinfactory.environment import with_library_settings
from pinfactory.persistence import register

from ._information import mixture_information
from ._mixture_answers import MixtureAnswers
from .table import Rows, distinct

# Least and largest total weight of the samples, and largest β₂ times that.
MIN_WEIGHT, MAX_WEIGHT, MAX_EVIDENCE = 1e-12, 1e12, 1e15


@register("SpecialistMixture")
class SpecialistMixture(MixtureAnswers):
    """Estimate a density with one Gaussian for each expert, and a selector that assigns samples.

    Every expert is a Normal–Wishart distribution q_m(μ, Λ) over the mean and precision of a
    Gaussian (Section 3.2 of the paper). Selector and experts maximise

        Σ_x Σ_m p(m|x) { E_q[log N(x|μ, Λ⁻¹)] − 1/β₁ log p(m|x)/p(m) } − 1/β₂ Σ_m KL(q_m‖p₀)

    in turns, each in closed form. With β₁ = β₂ = 1 this is the variational bound of the evidence.
    The density is the experts' joint prediction, a mixture of Student-t distributions. Experts that
    are not worth what they cost are removed. What is found depends on neither the order of the rows
    nor the units of the features, but for rounding: a score changes by the logarithm of the units,
    to about five digits.

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
        Whether superfluous experts are merged or removed, and others split.
    tol : float, default=1e-4
        Stop when an iteration raises the objective by less, in nats per sample.
    max_iter : int, default=200
        Iterations at the most, on each part of the data.
    n_init : int, default=1
        Starts that are tried on the first few thousand samples; the best goes on.
    warm_start : bool, default=False
        Whether `fit` goes on from the last solution.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness.

    Attributes
    ----------
    weights_ : ndarray of shape (n_experts,)
        p(m), zero for experts that are not in use.
    means_ : ndarray of shape (n_experts, n_features)
        E[μ] of every expert.
    covariances_, precisions_ : ndarray of shape (n_experts, n_features, n_features)
        E[Λ]⁻¹ and E[Λ].
    information_ : Information
        Bits processed by selector and experts.
    effective_experts_ : float
        2^H(M): the number of equally busy experts that would be as diverse.
    lower_bound_ : float
        The objective per sample, in nats.
    converged_ : bool
        Whether the last ascent met `tol`.
    n_iter_ : int
        Iterations taken in all.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

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

    n_experts: int
    beta_selector: float
    beta_expert: float
    df_prior: float | None
    strength_prior: float | None
    neglect: bool
    tol: float
    max_iter: int
    n_init: int
    warm_start: bool
    verbose: bool
    random_state: Any

    # scikit-learn wants a constructor that stores anything; what is stored is checked in `fit`.
    @no_type_check
    def __init__(
        self,
        n_experts: int = 8,
        *,
        beta_selector: float = 1.0,
        beta_expert: float = 1.0,
        df_prior: float | None = None,
        strength_prior: float | None = None,
        neglect: bool = True,
        tol: float = 1e-4,
        max_iter: int = 200,
        n_init: int = 1,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_experts = n_experts
        self.beta_selector = beta_selector
        self.beta_expert = beta_expert
        self.df_prior = df_prior
        self.strength_prior = strength_prior
        self.neglect = neglect
        self.tol = tol
        self.max_iter = max_iter
        self.n_init = n_init
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    # -------------------------------------------------------------------------------- training

    @with_library_settings
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "SpecialistMixture":
        """Estimate the density of the samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice. If their sum is
            above 10¹² or below 10⁻¹², all are scaled to that.

        Returns
        -------
        self
        """
        X, rows = self._checked(X, sample_weight, reset=True)
        known = self.mixture_ if self.warm_start and hasattr(self, "mixture_") else None
        random = check_random_state(self.random_state)
        with tqdm(desc=type(self).__name__, unit="iteration", disable=not self.verbose) as bar:
            whitening, search = self._begin(X, rows, known, random, bar)
            if known is not None:
                search.ascend(known.statistics)
            try:
                search.grow(random if self.neglect else None)
                if self.beta_selector > 1.0:
                    search.hyper = search.hyper.with_beta_selector(self.beta_selector)
                    search.ascend(search.best.statistics)
            except KeyboardInterrupt:
                # What has been found so far is a density as well.
                search.converged = False
        self._finish(whitening, search, search.best.statistics)
        if not search.converged:
            warnings.warn(
                f"The objective still rose by more than tol={self.tol} in the last iteration: "
                f"`max_iter` should be more than {self.max_iter}, or `tol` larger.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    @with_library_settings
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
        known = getattr(self, "mixture_", None)
        X, rows = self._checked(X, sample_weight, reset=known is None)
        random = check_random_state(self.random_state)
        split_source = random if self.neglect else None
        with tqdm(disable=True) as bar:
            whitening, search = self._begin(X, rows, known, random, bar)
        if known is None:
            search.grow(split_source)
            search.hyper = search.hyper.with_beta_selector(self.beta_selector)
            search.best = search.single_step(search.best.statistics)
            statistics = search.best.statistics
        else:
            statistics = density.update_online(
                search, known.statistics, self.beta_selector, split_source
            )
            search.converged = self.converged_
        search.n_iter = getattr(self, "n_iter_", 0) + 1
        self._finish(whitening, search, statistics)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the index of the most responsible expert for each sample."""
        return self.fit(X, y, sample_weight).predict(X)

    # ----------------------------------------------------------------------------------- inside

    def _checked(self, X: Any, sample_weight: Any, *, reset: bool) -> tuple[np.ndarray, Rows]:
        """Return checked samples, and the distinct ones among them."""
        check.integer("n_experts", self.n_experts, 1)
        check.integer("max_iter", self.max_iter, 1)
        check.integer("n_init", self.n_init, 1)
        check.number("tol", self.tol, 0.0)
        check.number("beta_selector", self.beta_selector, 0.0, open_low=True)
        check.number("beta_expert", self.beta_expert, 0.0, open_low=True)
        if self.strength_prior is not None:
            check.number("strength_prior", self.strength_prior, 0.0, open_low=True)
        # A batch may have one row, but one row has no covariance.
        X = validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1
        )
        if self.df_prior is not None:
            check.number("df_prior", self.df_prior, X.shape[1] - 1.0, open_low=True)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        rows = distinct(X, np.empty((len(X), 0)), _limited(weight))
        return X, Rows(*density.canonical_order(X, rows))

    def _begin(
        self,
        X: np.ndarray,
        rows: Rows,
        known: Mixture | None,
        random: np.random.RandomState,
        bar: Any,
    ) -> tuple[Whitening, density.Search]:
        """Return coordinates, and a search in them."""

        def report(n_iter: int, objective: float) -> None:
            if not bar.disable:
                bar.set_postfix(objective=f"{objective + whitening.log_det:.4g}", refresh=False)
                bar.update(n_iter)

        whitening = Whitening.of(X, rows) if known is None else known.whitening
        samples = density.Samples.of(whitening, X, rows)
        # Beyond so many samples' worth of evidence single precision cannot tell any difference.
        beta_expert = min(self.beta_expert, MAX_EVIDENCE / float(np.sum(rows[1])))
        if known is None:
            starts = density.starts(samples, whitening, random, self.n_experts, self.n_init)
            df = float(X.shape[1]) if self.df_prior is None else self.df_prior
            prior = density.common_prior(starts, df, self.strength_prior)
        else:
            prior = known.hyper.prior
        search = density.Search(
            samples,
            Hyperparameters(
                prior, np.float32(min(self.beta_selector, 1.0)), np.float32(beta_expert)
            ),
            tol=self.tol,
            max_iter=self.max_iter,
            report=report,
        )
        if known is None:
            search.start(starts)
        return whitening, search

    def _finish(
        self, whitening: Whitening, search: density.Search, statistics: density.Statistics
    ) -> None:
        """Keep what has been found; the statistics are those of all samples so far."""
        best, hyper = search.best, search.hyper
        self.mixture_ = Mixture(whitening, hyper, best.experts, best.fitted_to)
        self.information_ = mixture_information(best, statistics, search.conditional_entropy())
        # KL(q‖p₀) counts once for all samples so far, of which the last pass may have used a few.
        price = np.asarray(best.divergence, float).sum() / float(hyper.beta_expert)
        total_utility = float(best.value) / np.asarray(best.statistics.mass, float).sum()
        self.lower_bound_ = total_utility - price / np.asarray(statistics.mass, float).sum()
        self.lower_bound_ += whitening.log_det
        self.n_iter_, self.converged_ = search.n_iter, search.converged
        self._describe()


def _limited(weight: np.ndarray) -> np.ndarray:
    """Return weights whose total is within the limits that single precision can tell apart."""
    relative = weight / weight.max()
    total = float(weight.max()) * float(relative.sum())
    limited = min(max(total, MIN_WEIGHT), MAX_WEIGHT)
    return weight if total == limited else relative * (limited / float(relative.sum()))
