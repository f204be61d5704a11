"""`MetaSpecialistRegressor`: experts for families of regression tasks."""

import dataclasses
from typing import Any

import jax
import numpy as np

from pinfactory import settings as check
from pinfactory.core import utilities
from pinfactory.core.gaussian_experts import SteadyExpert
from pinfactory.core.hierarchy import Expert
from pinfactory.core.learning import Utility
from pinfactory.core.resources import Scheduled
from pinfactory.persistence import register

from ._adapted import AdaptedRegressor
from ._specialist import MetaSpecialist
from .evaluation import Evaluation, Routing
from .experts import HeadedNetwork
from .tasks import Samples, Tasks

UTILITIES: dict[str, Utility] = {
    "squared_error": utilities.squared_error,
    "huber": utilities.huber,
    "likelihood": utilities.log_likelihood,
}


@register("MetaSpecialistRegressor")
class MetaSpecialistRegressor(MetaSpecialist):
    """Learn to predict numbers in new tasks from a few samples, with experts for kinds of tasks.

    A selector looks at the whole support set of a task and chooses an expert; the expert adapts to
    the support set and answers the queries (Section 5.1). Inputs and targets are standardised
    inside, so that a β means the same whatever their units.

    Parameters
    ----------
    n_experts : int, default=16
        How many experts there are. One is plain meta-learning without specialisation.
    utility : {"squared_error", "huber", "likelihood"}, default="squared_error"
        What an answer is worth, in standardised units; expected over the answer's own noise.
    adaptation : {"last_layer", "gradient", "head", "none"}, default="last_layer"
        How an expert adapts to a support set: by the closed-form posterior of its last layer, by
        gradient steps of the whole network (MAML) or of its head (ANIL), or not at all.
    inner_steps : int, default=5
        Gradient steps while learning; `evaluate` and `adapt` may take more.
    inner_rate : float, default=0.03
        Their size at first.
    learn_rates : bool, default=True
        Whether step sizes are learned for every parameter of every expert (Meta-SGD).
    first_order : bool, default=False
        Whether meta-gradients leave out second derivatives.
    expert : {"relu", "tanh"} or callable, default="relu"
        Units of an expert's hidden layers, or a factory ``(input_shape, outputs, *, key)`` of a
        `pinfactory.meta.HeadedNetwork`.
    expert_hidden : tuple of int, default=(40,)
        Hidden layers of an expert.
    embedding : {"auto", "histogram", "set"} or Embedding, default="auto"
        What the selector sees of a support set: mean targets in bins of the input (regression on
        one feature only), or a learned encoding of the set; "auto" takes the first where it can.
    selector_hidden : tuple of int, default=(64,)
        Hidden layers of the selector.
    selection : {"exact", "sampled"}, default="exact"
        Whether every expert learns from every task as much as it is responsible for it, or one
        expert for each task, drawn by responsibility: cheaper for many large experts.
    beta_selector : float or Scheduled, default=30.0
        β₁, the selector's resource.
    beta_expert : float or Scheduled, default=30.0
        β₂, the experts' resource.
    selector_bits, expert_bits : float, optional
        A budget in bits instead of a β, met during training.
    balance : float, default=0.1
        Weight of a bonus on H(M), which keeps all experts in use.
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter : int, default=10000
        Steps of gradient ascent; the learning rate falls to zero along a half cosine.
    batch_size : int, default=64
        Tasks in a step.
    learning_rate : float, default=0.003
        Step size of Adam at first.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness.

    Attributes
    ----------
    information_ : CommitteeInformation
        Bits processed by both stages in training tasks, overall and per expert; p(m); effective
        number of experts. For meta-learning I(X;M) is what the support set tells of the expert.
    state_ : MetaState
        The trained hierarchy, its priors and resources.
    n_iter_ : int
        Steps taken.

    Examples
    --------
    >>> import numpy as np
    >>> from pinfactory.meta import MetaSpecialistRegressor
    >>> from pinfactory.meta.tasks import Sinusoids
    >>> tasks = Sinusoids(shots=10)
    >>> learner = MetaSpecialistRegressor(n_experts=2, max_iter=1000, random_state=0).fit(tasks)
    >>> learner.evaluate(tasks).mean < 1.0
    True
    >>> x = np.linspace(-4, 4, 10)[:, None]
    >>> learner.adapt(x, 2.0 * np.sin(x[:, 0] + 1.0)).predict([[0.5]]).shape
    (1,)
    """

    def __init__(
        self,
        n_experts: int = 16,
        *,
        utility: str = "squared_error",
        adaptation: str = "last_layer",
        inner_steps: int = 5,
        inner_rate: float = 0.03,
        learn_rates: bool = True,
        first_order: bool = False,
        expert: Any = "relu",
        expert_hidden: tuple[int, ...] = (40,),
        embedding: Any = "auto",
        selector_hidden: tuple[int, ...] = (64,),
        selection: str = "exact",
        beta_selector: float | Scheduled = 30.0,
        beta_expert: float | Scheduled = 30.0,
        selector_bits: float | None = None,
        expert_bits: float | None = None,
        balance: float = 0.1,
        momentum_selector: float = 0.99,
        momentum_expert: float = 0.99,
        max_iter: int = 10_000,
        batch_size: int = 64,
        learning_rate: float = 0.003,
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_experts = n_experts
        self.utility = utility
        self.adaptation = adaptation
        self.inner_steps = inner_steps
        self.inner_rate = inner_rate
        self.learn_rates = learn_rates
        self.first_order = first_order
        self.expert = expert
        self.expert_hidden = expert_hidden
        self.embedding = embedding
        self.selector_hidden = selector_hidden
        self.selection = selection
        self.beta_selector = beta_selector
        self.beta_expert = beta_expert
        self.selector_bits = selector_bits
        self.expert_bits = expert_bits
        self.balance = balance
        self.momentum_selector = momentum_selector
        self.momentum_expert = momentum_expert
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.verbose = verbose
        self.random_state = random_state

    def adapt(
        self, X: Any, y: Any, *, inner_steps: int | None = None, routing: Routing = "mixture"
    ) -> AdaptedRegressor:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs of the support set.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.
        inner_steps, routing
            As in `evaluate`.

        Returns
        -------
        AdaptedRegressor
            A fitted estimator with `predict` and `score`.
        """
        return AdaptedRegressor(self, inner_steps=inner_steps, routing=routing).fit(X, y)

    _targets_are_numbers = True

    def _utility(self) -> Utility:
        return UTILITIES[check.choice("utility", self.utility, list(UTILITIES))]

    def _knowledge(self, network: HeadedNetwork) -> Expert:
        return SteadyExpert(network, jax.device_put(np.zeros(self.n_outputs_, np.float32)))

    def _count_outputs(self, tasks: Tasks, samples: Samples) -> int:
        if samples.y.ndim != 2 or not np.issubdtype(samples.y.dtype, np.floating):
            raise ValueError(
                "targets of regression tasks must be vectors of numbers, but got samples of shape "
                f"{samples.y.shape[1:]} and type {samples.y.dtype}; use MetaSpecialistClassifier "
                "for class labels."
            )
        return samples.y.shape[1]

    def _in_own_units(self, found: Evaluation) -> Evaluation:
        # Of several outputs, the mean square of their deviations.
        variance = float(np.mean(np.asarray(self.scale_.y_deviation, float) ** 2))
        return dataclasses.replace(found, scores=found.scores * variance)
