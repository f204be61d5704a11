"""`SpecialistMixture`: a density as a committee of experts on Gaussians."""

import warnings
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, no_type_check

import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from tqdm.auto import tqdm

from pinfactory import density
from pinfactory.core.families import NormalWishart
from pinfactory.density import Frame, Mixture, MixtureInformation, Prices
from pinfactory.persistence import register, save_model
from pinfactory.plotting_density import ClusterDisplay, DensityDisplay

from . import _settings as check
from ._rows import Rows, distinct

# How fast older batches fade in `partial_fit`: a batch that is the share s of all samples so far
# counts s^0.6. Online EM converges with exponents between ½ and 1.
FADING = 0.6


@register("SpecialistMixture")
class SpecialistMixture(DensityMixin, BaseEstimator):
    """Estimate a density with experts that each know one Gaussian and a selector that assigns them.

    Every expert is a Normal–Wishart distribution q_m(μ, Λ) over the mean and precision of a
    Gaussian (Section 3.2 of the paper). Selector and experts maximise

        Σ_x Σ_m p(m|x) { E_q[log N(x|μ, Λ⁻¹)] − 1/β₁ log p(m|x)/p(m) } − 1/β₂ Σ_m KL(q_m‖p₀)

    in turns, each in closed form. With β₁ = β₂ = 1 this is the variational bound of the evidence.
    The density is the experts' joint prediction, a mixture of Student-t distributions. Experts that
    are not worth what they cost are dismissed. Nothing depends on the units of the features.

    Parameters
    ----------
    n_experts : int, default=8
        How many experts there are at the most; superfluous ones end with weight zero.
    beta_selector : float, default=1.0
        β₁, the selector's resource. 1 gives the posterior of a mixture, larger values a harder
        partition: the partition is found with β₁ = 1 and then hardened.
    beta_expert : float, default=1.0
        β₂, the experts' resource: large values let them follow the data, small ones keep them close
        to their prior p₀.
    df_prior : float, optional
        ν₀ of p₀, above D − 1; by default D, the number of features.
    strength_prior : float, optional
        λ₀ of p₀: how many samples the prior mean counts for. By default 0.01, or less if clusters
        are so far apart that even this would pull them.
    neglect : bool, default=True
        Whether superfluous experts are dismissed.
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
        p(m), zero for experts nobody asks.
    means_ : ndarray of shape (n_experts, n_features)
        E[μ] of every expert.
    covariances_, precisions_ : ndarray of shape (n_experts, n_features, n_features)
        E[Λ]⁻¹ and E[Λ].
    information_ : MixtureInformation
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

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "SpecialistMixture":
        """Estimate the density of the samples.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y
            Ignored.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice.

        Returns
        -------
        self
        """
        X, rows = self._checked(X, sample_weight, reset=True)
        known = self.mixture_ if self.warm_start and hasattr(self, "mixture_") else None
        with tqdm(desc=type(self).__name__, unit="iteration", disable=not self.verbose) as bar:
            frame, search = self._begin(X, rows, known, bar)
            try:
                search.grow(check_random_state(self.random_state) if self.neglect else None)
                if self.beta_selector > 1.0:
                    search.prices = self._prices(search.prices.prior, self.beta_selector)
                    search.climb(search.best.seen)
            except KeyboardInterrupt:
                # What has been found so far is a density as well.
                search.converged = False
        self._finish(frame, search)
        if not search.converged:
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
        batches fade, because their responsibilities were worse. No expert is dismissed.

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
        with tqdm(disable=True) as bar:
            frame, search = self._begin(X, rows, known, bar)
        if known is None:
            search.grow(None)
        search.prices = self._prices(search.prices.prior, self.beta_selector)
        batch = search.look(search.best.seen if known is None else known.statistics).seen
        if known is not None:
            before, now = float(jnp.sum(known.statistics.mass)), float(rows.weight.sum())
            rate, total = (now / (before + now)) ** FADING, before + now
            batch = density.blend(
                known.statistics, batch, density.single(rate), density.single(total)
            )
        search.best = search.look(batch)
        search.n_iter = getattr(self, "n_iter_", 0) + 1
        self._finish(frame, search)
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Fit, and return the index of the most responsible expert for each sample."""
        return self.fit(X, y, sample_weight).predict(X)

    # ------------------------------------------------------------------ questions to a fitted one

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(m|x) ∝ p(m) exp(β₁ E_q[log N(x|μ, Λ⁻¹)]) (equation 3)."""
        logits = self._ask(Mixture.log_responsibilities, X)
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Return the index of the most responsible expert for each sample."""
        return self._ask(Mixture.log_responsibilities, X).argmax(axis=1)

    def free_energy(self, X: Any) -> np.ndarray:
        """Return f(x, m) = E_q[log N(x|μ, Λ⁻¹)] − KL(q_m‖p₀)/(β₂ n_m), in nats.

        An expert pays for what it learned once, and the n_m samples it is responsible for share
        the price. An expert nobody asks has −∞.
        """
        utility = self._ask(Mixture.utilities, X)
        asked = self.weights_ > 0
        mass = np.where(asked, np.asarray(self.mixture_.statistics.mass, float), 1.0)
        price = self.information_.per_expert * np.log(2.0) / (self.beta_expert * mass)
        return np.where(asked, utility - price, -np.inf)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density of each sample, in the units of X."""
        return self._ask(Mixture.log_density, X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log-density of the samples."""
        return float(np.average(self.score_samples(X), weights=sample_weight))

    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw samples from the density; return them and the experts they come from."""
        check_is_fitted(self)
        n_samples = check.integer("n_samples", n_samples, 1)
        return self.mixture_.sample(n_samples, check_random_state(self.random_state))

    def bic(self, X: Any) -> float:
        """Return Bayes' information criterion on X; lower is better."""
        scores = self.score_samples(X)
        return float(np.log(len(scores)) * self._n_parameters() - 2.0 * scores.sum())

    def aic(self, X: Any) -> float:
        """Return Akaike's information criterion on X; lower is better."""
        return float(2.0 * self._n_parameters() - 2.0 * self.score_samples(X).sum())

    def plot_density(self, X: Any, **options: Any) -> DensityDisplay:
        """Draw the density over two features; options as in `DensityDisplay.from_estimator`."""
        return DensityDisplay.from_estimator(self, X, **options)

    def plot_partition(self, X: Any, **options: Any) -> ClusterDisplay:
        """Draw who answers where; options as in `ClusterDisplay.from_estimator`."""
        return ClusterDisplay.from_estimator(self, X, **options)

    def save(self, path: Any) -> None:
        """Write the fitted mixture to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self)
        save_model(self, path)

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
        # A batch may have one row, but one row says nothing of how far samples are apart.
        X = validate_data(
            self, X, reset=reset, dtype=np.float64, ensure_min_samples=2 if reset else 1
        )
        if self.df_prior is not None:
            check.number("df_prior", self.df_prior, X.shape[1] - 1.0, open_low=True)
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        return X, distinct(X, np.empty((len(X), 0)), weight)

    def _begin(
        self, X: np.ndarray, rows: Rows, known: Mixture | None, bar: Any
    ) -> tuple[Frame, density.Search]:
        """Return coordinates, and a search in them that has made a start."""

        def report(n_iter: int, objective: float) -> None:
            bar.set_postfix(objective=f"{objective + frame.log_det:.4g}", refresh=False)
            bar.update(n_iter)

        frame = Frame.of(X, rows) if known is None else known.frame
        samples = density.Samples.of(frame, X, rows)
        if known is None:
            random = check_random_state(self.random_state)
            starts = density.starts(samples, frame, random, self.n_experts, self.n_init)
            df = float(X.shape[1]) if self.df_prior is None else self.df_prior
            prior = density.common_prior(starts, df, self.strength_prior)
        else:
            starts, prior = [density.to_host(known.statistics)], known.prices.prior
        prices = self._prices(prior, min(self.beta_selector, 1.0))
        search = density.Search(
            samples, prices, tol=self.tol, max_iter=self.max_iter, report=report
        )
        search.choose(starts)
        return frame, search

    def _prices(self, prior: NormalWishart, beta_selector: float) -> Prices:
        return Prices(prior, np.float32(beta_selector), np.float32(self.beta_expert))

    def _finish(self, frame: Frame, search: density.Search) -> None:
        """Keep what has been found, and say what it is in the user's units."""
        best = search.best
        self.mixture_ = Mixture(frame, search.prices, best.experts, best.taught)
        self.information_ = MixtureInformation.of(best, float(search.prices.beta_selector))
        self.lower_bound_ = float(best.objective) + frame.log_det
        self.n_iter_, self.converged_ = search.n_iter, search.converged
        self._describe()

    def _describe(self) -> None:
        self.weights_ = self.mixture_.weights
        self.means_ = self.mixture_.means
        self.covariances_ = self.mixture_.covariances
        self.effective_experts_ = self.information_.effective_experts

    def _ask(self, question: Callable[[Mixture, np.ndarray], np.ndarray], X: Any) -> np.ndarray:
        check_is_fitted(self)
        return question(self.mixture_, validate_data(self, X, reset=False, dtype=np.float64))

    def _n_parameters(self) -> int:
        """Count weights, means and covariances of the experts that are asked."""
        d, asked = self.n_features_in_, int(np.sum(self.weights_ > 0))
        return asked * (1 + d + d * (d + 1) // 2) - 1

    # ------------------------------------------------------------------------------------ files

    _plain = ("n_features_in_", "feature_names_in_", "n_iter_", "converged_", "lower_bound_")

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        plain = {name: getattr(self, name) for name in self._plain if hasattr(self, name)}
        meta = {"params": self.get_params(deep=False), "plain": plain}
        meta["information"] = asdict(self.information_)
        return meta | {"n_experts": len(self.weights_)}, self.mixture_.arrays()

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "SpecialistMixture":
        model = cls(**meta["params"])
        for name, value in meta["plain"].items():
            setattr(model, name, value)
        model.information_ = MixtureInformation(**meta["information"])
        model.mixture_ = Mixture.of(load(Mixture.blank(meta["n_experts"], model.n_features_in_)))
        model._describe()
        return model
