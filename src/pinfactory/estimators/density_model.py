"""What a density answers, once it is fitted: everything but `fit` of `SpecialistMixture`."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from pinfactory import settings as check
from pinfactory.base import Learnable
from pinfactory.core.compiling import with_library_settings
from pinfactory.core.information import Information
from pinfactory.density import Mixture
from pinfactory.tables import as_frame

from .table import FrameInputs, is_array


class DensityModel(FrameInputs, DensityMixin, Learnable):
    """Questions to a fitted mixture of experts on Gaussians, kept in `state_`."""

    state_: Mixture
    information_: Information
    beta_expert: float
    random_state: Any

    @property
    def weights_(self) -> np.ndarray:
        """p(m), zero for experts that are not in use."""
        check_is_fitted(self)
        return self.state_.weights

    @property
    def means_(self) -> np.ndarray:
        """E[μ] of every expert."""
        check_is_fitted(self)
        return self.state_.means

    @property
    def covariances_(self) -> np.ndarray:
        """E[Λ]⁻¹ of every expert."""
        check_is_fitted(self)
        return self.state_.covariances

    @property
    def precisions_(self) -> np.ndarray:
        """E[Λ] of every expert."""
        check_is_fitted(self)
        return np.linalg.inv(self.covariances_)

    def responsibilities(self, X: Any) -> np.ndarray:
        """Return p(m|x) ∝ p(m) exp(β₁ E_q[log N(x|μ, Λ⁻¹)]) (equation 3).

        Missing values are integrated out of N(x|μ, Λ⁻¹).
        """
        logits = self._evaluate(Mixture.log_responsibilities, X)
        probs = np.exp(logits - logits.max(axis=1, keepdims=True))
        return probs / probs.sum(axis=1, keepdims=True)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return p(m|x): `responsibilities` under the name that scikit-learn has for it."""
        return self.responsibilities(X)

    def predict(self, X: Any) -> np.ndarray:
        """Return the index of the most responsible expert for each sample."""
        return self._evaluate(Mixture.log_responsibilities, X).argmax(axis=1)

    def free_energy(self, X: Any) -> np.ndarray:
        """Return f(x, m) = E_q[log N(x|μ, Λ⁻¹)] − KL(q_m‖p₀)/(β₂ n_m), in nats.

        KL(q_m‖p₀) counts once for an expert, and is divided among the n_m samples it is responsible
        for. An expert that is not in use has −∞.
        """
        utility = self._evaluate(Mixture.utilities, X)
        price = self.information_.per_expert * np.log(2.0) / self.beta_expert
        return np.where(self.weights_ > 0, utility - price, -np.inf)

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the log-density of each sample, in the units of X, missing values integrated out.

        It is that of fewer numbers where values are missing: compare rows with the same ones known.
        """
        return self._evaluate(Mixture.log_density, X)

    def surprise(self, X: Any) -> np.ndarray:
        """Return by how many bits each sample is less likely than usual.

        That is than the median of samples that are drawn from the density itself, of which the
        same values are known: rows with and without gaps can be compared. The largest are the
        outliers.
        """
        return self._evaluate(Mixture.surprise, X)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log-density of the samples."""
        return float(np.average(self.score_samples(X), weights=sample_weight))

    @with_library_settings
    def sample(self, n_samples: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Draw samples from the density; return them and the experts they come from."""
        check_is_fitted(self)
        n_samples = check.integer("n_samples", n_samples, 1)
        return self.state_.sample(n_samples, check_random_state(self.random_state))

    def bic(self, X: Any) -> float:
        """Return Bayes' information criterion on X; lower is better."""
        scores = self.score_samples(X)
        return float(np.log(len(scores)) * self._n_parameters() - 2.0 * scores.sum())

    def aic(self, X: Any) -> float:
        """Return Akaike's information criterion on X; lower is better."""
        return float(2.0 * self._n_parameters() - 2.0 * self.score_samples(X).sum())

    def plot_density(self, X: Any, **options: Any) -> Any:
        """Draw the density; see `pinfactory.plotting.DensityDisplay.from_estimator`."""
        from pinfactory.plotting import DensityDisplay

        return DensityDisplay.from_estimator(self, X, **options)

    def plot_partition(self, X: Any, **options: Any) -> Any:
        """Draw who answers where; see `pinfactory.plotting.PartitionDisplay.from_estimator`."""
        from pinfactory.plotting import PartitionDisplay

        return PartitionDisplay.from_estimator(self, X, **options)

    # ----------------------------------------------------------------------------------- inside

    @with_library_settings
    def _evaluate(
        self, question: Callable[[Mixture, np.ndarray], np.ndarray], X: Any
    ) -> np.ndarray:
        check_is_fitted(self)
        return question(self.state_, self._numbers(X, reset=False))

    def _n_parameters(self) -> int:
        """Count weights, means and covariances of the experts that are asked."""
        d, active = self.means_.shape[1], int(np.sum(self.weights_ > 0))
        return active * (1 + d + d * (d + 1) // 2) - 1

    def _numbers(self, X: Any, *, reset: bool, ensure_min_samples: int = 1) -> np.ndarray:
        """Return samples as numbers, with NaN for what is missing in a data frame."""
        if is_array(X) or as_frame(X) is None:
            self._refuse_array(reset=reset)
            return validate_data(
                self, X, reset=reset, dtype=np.float64, ensure_min_samples=ensure_min_samples
            )
        if not reset and not hasattr(self, "encoding_"):
            return validate_data(self, X, reset=False, dtype=np.float64)
        return check_array(
            self._encoded(X, reset=reset, keep_gaps=True),
            estimator=self,
            ensure_all_finite="allow-nan",
            ensure_min_samples=ensure_min_samples,
        )
