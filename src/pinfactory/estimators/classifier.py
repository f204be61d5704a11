"""`SpecialistClassifier`: a committee that sorts samples into classes."""

from functools import partial
from pathlib import Path
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

from pinfactory.core.constraints import Scheduled
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy
from pinfactory.core.information import marginal
from pinfactory.core.learning import Data
from pinfactory.networks import Factory
from pinfactory.persistence import register

from .committee import Committee
from .fitting import Problem
from .linear_tree import grow
from .table import RowNumbers, Rows, Table

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
        The most experts there may be. How many are in use is found out on held-out rows, down to
        one where one is enough (`start`).
    expert : {"linear", "mlp", "constant"} or callable, default="linear"
        What an expert is: a linear map, a linear map and a multilayer perceptron added up, the same
        answer to everything, or a factory ``(inputs, outputs, *, key)`` of any Equinox module from
        a vector to a vector.
    expert_hidden : tuple of int, default=(64,)
        Hidden layers of an ``"mlp"`` expert, with ReLU units.
    selector : {"tree", "mlp", "linear"} or callable, default="tree"
        What the selector is: a binary tree of linear gates, a multilayer perceptron, a linear map,
        or a factory as for `expert`.
    selector_hidden : tuple of int, default=(10, 10)
        Hidden layers of an ``"mlp"`` selector, with tanh units.
    start : {"auto", "tree", "random"}, default="auto"
        How training begins: from linear model trees of several sizes, one leaf among them; from
        random parameters; or both, and what is best on held-out rows is kept.
    objective : {"auto", "likelihood", "free_energy"}, default="auto"
        What is maximised, both minus the price of information: the log-likelihood of the mixture,
        log Σ p(m|x) p(y|x,m), or the expected utility of an expert, which makes it J. "auto" is the
        likelihood wherever it is defined and prices stay fixed.
    beta_selector : float or Scheduled, default=25.0
        β₁, the selector's resource: large values let it process much information, small ones make
        the experts share every sample.
    beta_expert : float or Scheduled, default=20.0
        β₂, the experts' resource: small values keep their answers close to their habit p(y|m).
    selector_bits, expert_bits : float, optional
        A budget in bits instead of a β, which begins at the β above and is found. It is met on the
        training samples within 5 %; where a stage has no use for so many bits, a warning says how
        many it processes. `partial_fit` draws near a budget batch by batch.
    expectation : {"exact", "sampled"}, default="exact"
        Whether a step takes the exact expectation over experts, or samples one expert for each
        input, as the paper does.
    prior : {"running", "uniform"}, default="running"
        Whether priors follow the posteriors, or are uniform (the confidence penalty).
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter : int, default=3000
        Steps of gradient ascent at the most.
    batch_size : int or "auto", default="auto"
        Samples in a step; by default a sixty-fourth of all, between 32 and 1,024.
    learning_rate : float, default=0.006
        Step size of Adam.
    weight_decay : float, default=0.0
        Decay of all weights per unit of learning rate.
    early_stopping : bool, "folds" or "auto", default="auto"
        How to find out when to stop. True sets a part of the samples aside, stops when the
        committee no longer improves on it, and keeps the best state. "folds" finds the number of
        steps by cross-validation and then trains that long on all samples. "auto" uses folds from
        40 samples on, a part of them from 10,000 samples on (or from 100 if a β follows a
        schedule).
    validation_fraction : float, default=0.15
        Share of the samples that is set aside, at most 10,000 of them.
    n_iter_no_change : int, default=10
        How many checks without improvement end training; there is one every 100 steps.
    n_init : int, default=1
        Random starts, trained side by side with those from trees; the best is kept.
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes.
    standardise : bool, default=True
        Whether inputs are standardised, and rows far outside of all others left out; if
        not, data are taken as they are.
    averaging : bool, default=True
        Whether what is kept is the running mean of the parameters, or those of the last step.
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
    information_ : Information
        Bits processed by both stages, overall and per expert; p(m); effective number of experts.
    effective_experts_ : float
        2^H(M): the number of equally busy experts that would be as diverse.
    gain_ : tuple of two floats, or None
        What the committee gains over one expert in held-out score, for each sample, and its
        standard error; None where no samples were held out.
    verdict_ : str
        In plain words: whether one expert is enough, or several share the work.
    state_ : State
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
        selector: str | Factory = "tree",
        selector_hidden: tuple[int, ...] = (10, 10),
        start: str = "auto",
        objective: str = "auto",
        beta_selector: float | Scheduled = 25.0,
        beta_expert: float | Scheduled = 20.0,
        selector_bits: float | None = None,
        expert_bits: float | None = None,
        expectation: str = "exact",
        prior: str = "running",
        momentum_selector: float = 0.99,
        momentum_expert: float = 0.99,
        max_iter: int = 3000,
        batch_size: int | str = "auto",
        learning_rate: float = 6e-3,
        weight_decay: float = 0.0,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        n_iter_no_change: int = 10,
        n_init: int = 1,
        class_weight: dict | str | None = None,
        standardise: bool = True,
        averaging: bool = True,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_experts = n_experts
        self.expert = expert
        self.expert_hidden = expert_hidden
        self.selector = selector
        self.selector_hidden = selector_hidden
        self.start = start
        self.objective = objective
        self.beta_selector = beta_selector
        self.beta_expert = beta_expert
        self.selector_bits = selector_bits
        self.expert_bits = expert_bits
        self.expectation = expectation
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
        self.standardise = standardise
        self.averaging = averaging
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        callbacks: Any = None,
        checkpoint: str | Path | None = None,
    ) -> "SpecialistClassifier":
        """Train the committee.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            The samples.
        y : array-like of shape (n_samples,)
            Their labels, of any type.
        sample_weight : array-like of shape (n_samples,), optional
            How much each sample counts: weight 2 is the same as the sample twice.
        callbacks : Callback or sequence of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.
        checkpoint : str or Path, optional
            File that is written along the way; a `fit` that was interrupted goes on from it.

        Returns
        -------
        self
        """
        with self._learning():
            warm = self._is_warm()
            X, y, weight = self._checked(X, y, sample_weight, reset=not warm, numeric=False)
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
            rows = self._rows(X, codes, self._class_weighted(y, codes, weight))
            if not warm:
                self._fit_scaler(X, rows)
            table = self._table(X, codes.astype(np.int32), rows)
            self._fit_table(table, callbacks=callbacks, checkpoint=checkpoint)
            self._set_rules(X, codes)
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
        with self._learning():
            first = not hasattr(self, "state_")
            X, y, weight = self._checked(X, y, sample_weight, reset=first, numeric=False)
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
            rows = Rows(np.arange(len(X)), self._class_weighted(y, codes, weight))
            if first:
                self._fit_scaler(X, rows)
            self._fit_batch(self._table(X, codes.astype(np.int32), rows))
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

    _attributes = ("classes_", *Committee._attributes)

    def _measured_targets(self, y: np.ndarray) -> np.ndarray:
        return self._codes(y)

    def _problem(self) -> Problem:
        n_classes = len(self.classes_)
        return Problem(
            self._n_inputs,
            log_likelihood_of_code,
            lambda key: FamilyExpert(self._network(n_classes, key), Categorical.from_logits),
            _log_likelihood_of_rows,
            _stratified_order,
            partial(grow, n_classes=n_classes, linear=self.expert != "constant"),
        )

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

    @staticmethod
    @eqx.filter_jit
    def _mixture(hierarchy: Hierarchy, x: Float[Array, "n d"]) -> Categorical:
        answer = marginal(jax.vmap(hierarchy)(x))
        assert answer is not None
        return answer


def _stratified_order(table: Table, random: np.random.Generator) -> RowNumbers:
    """Return an order that takes classes in turn: any part of it has its share of each."""
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


def _log_likelihood_of_rows(hierarchy: Hierarchy, data: Data) -> Float[Array, " n"]:
    return SpecialistClassifier._mixture(hierarchy, data.x).log_prob(data.y)
