"""`SpecialistClassifier`: a committee that sorts samples into classes."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.information import marginal
from pinfactory.core.learning import Data, Utility
from pinfactory.core.resources import Scheduled
from pinfactory.networks import Factory
from pinfactory.persistence import register

from ._committee import Committee
from ._table import Table

Routing = Literal["mixture", "best", "sampled"]


@register("SpecialistClassifier")
class SpecialistClassifier(ClassifierMixin, Committee):
    """Classify with a few simple experts and a selector that sends each sample to one of them.

    Selector and experts maximise the expected log-likelihood of the labels minus the price of the
    information they process (equations 7, 10 and 11 of the paper). Inputs are standardised inside,
    so that a β means the same whatever their units.

    Parameters
    ----------
    n_experts : int, default=4
        How many experts there are.
    expert : {"linear", "mlp"} or callable, default="linear"
        What an expert is: a linear map, a multilayer perceptron, or a factory
        ``(inputs, outputs, *, key)`` of any Equinox module from a vector to a vector.
    expert_hidden : tuple of int, default=(64,)
        Hidden layers of an ``"mlp"`` expert, with ReLU units.
    selector_hidden : tuple of int, default=(10, 10)
        Hidden layers of the selector, with tanh units.
    beta_selector : float or Scheduled, default=5.0
        β₁, the selector's resource: large values let it process much information, small ones make
        the experts share every sample.
    beta_expert : float or Scheduled, default=20.0
        β₂, the experts' resource: small values keep their answers close to their habit p(y|m).
    selector_bits, expert_bits : float, optional
        A budget in bits instead of a β, met during training.
    prior : {"running", "uniform"}, default="running"
        Whether priors follow the posteriors, or are uniform (the confidence penalty).
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter : int, default=10000
        Steps of gradient ascent at the most.
    batch_size : int, default=32
        Samples in a step.
    learning_rate : float, default=0.003
        Step size of Adam.
    weight_decay : float, default=0.0
        Decay of all weights per unit of learning rate.
    early_stopping : bool, "folds" or "auto", default="auto"
        How to find out when to stop. True sets a part of the samples aside, stops when the
        committee no longer improves on it, and keeps the best state. "folds" finds the number of
        steps by cross-validation and then trains that long on all samples. "auto" uses folds from
        40 samples on, a part of them from 10,000 samples on (or from 100 if a β follows a
        schedule or a budget).
    validation_fraction : float, default=0.15
        Share of the samples that is set aside, at most 10,000 of them.
    n_iter_no_change : int, default=20
        How many checks without improvement end training; there is one every 100 steps.
    n_init : int, default=5
        Restarts, trained side by side; the best is kept.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    warm_start : bool, default=False
        Whether `fit` goes on from the last solution.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness.

    Attributes
    ----------
    classes_ : ndarray
        The labels.
    information_ : CommitteeInformation
        Bits processed by both stages, overall and per expert; p(m); effective number of experts.
    state_ : LearnerState
        The trained hierarchy, its priors and resources.
    n_iter_ : int
        Steps taken.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import make_circles
    >>> from pinfactory import SpecialistClassifier
    >>> X, y = make_circles(400, factor=0.4, noise=0.05, random_state=0)
    >>> committee = SpecialistClassifier(n_experts=4, random_state=0).fit(X, y)
    >>> bool(committee.score(X, y) > 0.97)
    True
    >>> committee.responsibilities(X).shape
    (400, 4)
    """

    def __init__(
        self,
        n_experts: int = 4,
        *,
        expert: str | Factory = "linear",
        expert_hidden: tuple[int, ...] = (64,),
        selector_hidden: tuple[int, ...] = (10, 10),
        beta_selector: float | Scheduled = 5.0,
        beta_expert: float | Scheduled = 20.0,
        selector_bits: float | None = None,
        expert_bits: float | None = None,
        prior: str = "running",
        momentum_selector: float = 0.99,
        momentum_expert: float = 0.99,
        max_iter: int = 10_000,
        batch_size: int = 32,
        learning_rate: float = 3e-3,
        weight_decay: float = 0.0,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 20,
        n_init: int = 5,
        class_weight: dict | str | None = None,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_experts = n_experts
        self.expert = expert
        self.expert_hidden = expert_hidden
        self.selector_hidden = selector_hidden
        self.beta_selector = beta_selector
        self.beta_expert = beta_expert
        self.selector_bits = selector_bits
        self.expert_bits = expert_bits
        self.prior = prior
        self.momentum_selector = momentum_selector
        self.momentum_expert = momentum_expert
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.n_init = n_init
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SpecialistClassifier":
        """Train the committee.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y : array-like of shape (n_samples,)
            Their labels, of any type.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice.

        Returns
        -------
        self
        """
        warm = self._is_warm()
        X, y, weight = self._checked(X, y, sample_weight, reset=not warm)
        check_classification_targets(y)
        classes = np.unique(y[weight > 0])
        if len(classes) < 2:
            raise ValueError(
                "`y` must hold at least two classes, but got one class: "
                f"{classes[0]!r} (in samples with a weight above zero)."
            )
        if not warm:
            self.classes_ = classes
        codes = self._codes(y, weight)
        self._fit_rows(X, codes, self._class_weighted(y, codes, weight))
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "SpecialistClassifier":
        """Go on learning from a batch of samples, each seen once.

        The first batch sets the scale of the inputs. `information_` is that of the last batch.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, optional
            All labels that will ever occur; needed in the first call.

        Returns
        -------
        self
        """
        first = not hasattr(self, "state_")
        X, y, weight = self._checked(X, y, sample_weight, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ValueError("`classes` must be given in the first call of partial_fit.")
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                "`classes` must be the same in every call of partial_fit, but got "
                f"{np.unique(classes)!r} after {self.classes_!r}."
            )
        if self.class_weight == "balanced":
            raise ValueError(
                "`class_weight` must be a dict or None for partial_fit, which cannot know how "
                "frequent the classes will be, but got 'balanced'."
            )
        codes = self._codes(y, weight)
        self._learn_on(X, codes, self._class_weighted(y, codes, weight))
        return self

    def predict_proba(self, X: Any, *, routing: Routing = "mixture") -> np.ndarray:
        """Return the probability of every class.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        routing : {"mixture", "best", "sampled"}, default="mixture"
            Who answers: all experts weighted by their responsibility, the most responsible one
            alone, or one drawn by responsibility (the paper's generative process).

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        probs = np.exp(self._routed(X, routing).log_probs)
        return probs / probs.sum(axis=1, keepdims=True)

    def predict(self, X: Any, *, routing: Routing = "mixture") -> np.ndarray:
        """Return the most probable class; `routing` as in `predict_proba`."""
        check_is_fitted(self)
        return self.classes_[self.predict_proba(X, routing=routing).argmax(axis=1)]

    def expert_predict(self, X: Any, expert: int) -> np.ndarray:
        """Return the most probable class in the opinion of one expert."""
        answers = self._ask_expert(X, expert)
        return self.classes_[answers.log_probs.argmax(axis=1)]

    # ------------------------------------------------------------ what makes it a classifier

    _plain = ("classes_", "n_features_in_", "feature_names_in_", "n_experts_", "n_iter_")
    _scalers = ("scaler_",)
    _numeric = False

    def _codes(self, y: np.ndarray, weight: np.ndarray | float = 1.0) -> np.ndarray:
        """Return the positions of the labels in `classes_`."""
        codes = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        known = self.classes_[codes] == y
        # A label that occurs only with weight zero is never learned from.
        strange = np.unique(y[~known & (weight > 0)])
        if len(strange):
            raise ValueError(
                f"`y` must hold labels among {self.classes_.tolist()}, but got {strange.tolist()}."
            )
        return np.where(known, codes, 0)

    def _class_weighted(self, y: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weights of samples times those of their classes."""
        if self.class_weight == "balanced":
            # By weight, not by count: a sample of weight 2 is the same as the sample twice.
            total = np.bincount(codes, weight, minlength=len(self.classes_))
            share = np.where(total > 0, len(total) * total / total.sum(), 1.0)
            return weight / share[codes]
        weight = weight * compute_sample_weight(self.class_weight, y)
        if weight.min() < 0 or not weight.any():
            raise ValueError(
                "`class_weight` must hold no negative weight and leave some samples with a "
                f"weight above zero, but got {self.class_weight!r}."
            )
        return weight

    def _targets(self, y: np.ndarray) -> np.ndarray:
        return y.astype(np.int32)

    def _utility(self) -> Utility:
        return log_likelihood_of_code

    def _score_function(self) -> Callable[[Hierarchy, Data], Float[Array, " n"]]:
        return _log_likelihood_of_rows

    def _mixture(self, hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Categorical:
        return _mixture(hierarchy, x)

    def _head(self) -> Callable[[Array], Family]:
        return Categorical.from_logits

    @property
    def _n_outputs(self) -> int:
        return len(self.classes_)

    def _shuffled(self, table: Table, random: np.random.Generator) -> np.ndarray:
        """Deal the classes out in turn, so that any part of the order has its share of each."""
        order = random.permutation(len(table.x))
        rank = np.empty(len(order))
        for label in np.unique(table.y):
            members = order[table.y[order] == label]
            rank[members] = (np.arange(len(members)) + random.uniform()) / len(members)
        return np.argsort(rank, kind="stable")


def log_likelihood_of_code(answer: Family, code: Int[Array, ""]) -> Float[Array, ""]:
    """Return log p(y) of one class as a masked sum.

    Looking it up would be the same, but the gradient of a lookup is slow on a CPU.
    """
    assert isinstance(answer, Categorical)
    log_probs = answer.log_probs
    return jnp.sum(jnp.where(jnp.arange(log_probs.shape[-1]) == code, log_probs, 0.0))


@eqx.filter_jit
def _mixture(hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Categorical:
    answer = marginal(jax.vmap(hierarchy)(x))
    assert answer is not None
    return answer


def _log_likelihood_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return _mixture(hierarchy, data.x).log_prob(data.y)
