"""Predictions of a fitted mixture, and how it is stored."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
from jaxtyping import PyTree
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from pinfactory import settings as check
from pinfactory.core.information import Information
from pinfactory.density import Mixture
from pinfactory.environment import with_library_settings
from pinfactory.persistence import save_model, set_attributes


class MixtureAnswers(DensityMixin, BaseEstimator):
    """Methods of a fitted mixture."""

    beta_expert: float
    random_state: Any
    mixture_: Mixture
    information_: Information
    n_features_in_: int

    @property
    def precisions_(self) -> np.ndarray:
        """E[Λ] of every expert."""
        check_is_fitted(self)
        return np.linalg.inv(self.covariances_)

    def responsibilities(self, X: Any) -> np.ndarray:
        """Return p(m|x) ∝ p(m) exp(β₁ E_q[log N(x|μ, Λ⁻¹)]) (equation 3)."""
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
        """Return the log-density of each sample, in the units of X."""
        return self._evaluate(Mixture.log_density, X)

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

    def plot_density(self, X: Any, **options: Any) -> Any:
        """Draw the density; see `pinfactory.plotting.DensityDisplay.from_estimator`."""
        from pinfactory.plotting import DensityDisplay

        return DensityDisplay.from_estimator(self, X, **options)

    def plot_partition(self, X: Any, **options: Any) -> Any:
        """Draw who answers where; see `pinfactory.plotting.PartitionDisplay.from_estimator`."""
        from pinfactory.plotting import PartitionDisplay

        return PartitionDisplay.from_estimator(self, X, **options)

    def plot_information(self, *, ax: Any = None) -> Any:
        """Draw the bits processed; see `pinfactory.plotting.InformationDisplay`."""
        from pinfactory.plotting import InformationDisplay

        return InformationDisplay.from_estimator(self, ax=ax)

    def save(self, path: Any) -> None:
        """Write the fitted mixture to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self)
        save_model(self, path)

    # ----------------------------------------------------------------------------------- inside

    @with_library_settings
    def _evaluate(
        self, question: Callable[[Mixture, np.ndarray], np.ndarray], X: Any
    ) -> np.ndarray:
        check_is_fitted(self)
        return question(self.mixture_, validate_data(self, X, reset=False, dtype=np.float64))

    def _n_parameters(self) -> int:
        """Count weights, means and covariances of the experts that are asked."""
        d, active = self.n_features_in_, int(np.sum(self.weights_ > 0))
        return active * (1 + d + d * (d + 1) // 2) - 1

    def _describe(self) -> None:
        """Set the public attributes, in the user's units."""
        self.weights_ = self.mixture_.weights
        self.means_ = self.mixture_.means
        self.covariances_ = self.mixture_.covariances
        self.effective_experts_ = self.information_.effective_experts

    # ------------------------------------------------------------------------------------ files

    _may_be_minus_infinity = ("['posterior']['log_weight']",)
    _plain = ("n_features_in_", "feature_names_in_", "n_iter_", "converged_", "lower_bound_")

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        plain = {name: getattr(self, name) for name in self._plain if hasattr(self, name)}
        meta = {"params": self.get_params(deep=False), "plain": plain}
        meta["information"] = asdict(self.information_)
        return meta | {"n_experts": len(self.weights_)}, self.mixture_.arrays()

    @classmethod
    @with_library_settings
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "MixtureAnswers":
        model = cls(**meta["params"])
        set_attributes(model, meta["plain"], cls._plain)
        model.information_ = Information(**meta["information"])
        model.mixture_ = Mixture.of(load(Mixture.zeros(meta["n_experts"], model.n_features_in_)))
        model._describe()
        return model
