"""The settings that meta-learning classifier and regressor share, and what tasks make of them."""

from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import Learnable, describe
from pinfactory.core.constraints import Fixed, Resource, Scheduled
from pinfactory.core.hierarchy import Hierarchy, zeros_like
from pinfactory.core.learning import State, Utility
from pinfactory.core.splitting import Growth
from pinfactory.core.training import Progress
from pinfactory.networks import reserve

from .experts import TaskInput, per_query
from .source import Scale
from .tasks import Samples

# A new selector of experts that share features warms up for this share of all steps.
WARMUP_FRACTION = 0.1
# With a warm-up β₁ begins at so many times its value, and has it after so many warm-ups.
FIRST_BETA, N_WARMUPS = 10.0, 5.0

PARAMETERS = """n_experts : int, default=4
        How many experts there are. One is plain meta-learning without specialisation.
    expert : {"auto", "mlp", "conv"} or callable, default="auto"
        What an expert's network is: a multilayer perceptron, a convolutional block with a linear
        head, or a factory ``(input_shape, outputs, *, key)`` of a
        `pinfactory.meta.HeadedNetwork`. "auto" is "conv" for images, of shape (height, width) or
        (height, width, channels), else "mlp".
    expert_hidden : tuple of int, default=(40,)
        Hidden layers of an "mlp" expert.
    selector : {"mlp", "kmeans"}, default="mlp"
        How tasks come to experts: by a multilayer perceptron that learns from the experts' free
        energy, or as a control by fixed clusters of the embeddings.
    selector_hidden : tuple of int, default=(64,)
        Hidden layers of the selector.
    beta_selector : float or Scheduled, default=30.0
        β₁, the selector's resource; a utility counts in units of its deviation.
    beta_expert : float or Scheduled, default=30.0
        β₂, the experts' resource.
    selector_bits, expert_bits : float, optional
        A budget in bits instead of a β, met during training. `fit` warns if one was missed by more
        than 5 %.
    expectation : {"exact", "sampled"}, default="exact"
        Whether J is the expectation over all experts, or that of one sampled expert for each task,
        as in the paper.
    momentum_selector, momentum_expert : float, default=0.99
        λ₂ and λ₁, the momenta of the running priors.
    max_iter : int, default=10000
        Steps of gradient ascent; the learning rate falls to zero along a half cosine.
    batch_size : int, default=32
        Tasks in a step.
    learning_rate : float, default=0.003
        Step size of Adam at first.
    balance : float, default=0.1
        Weight of a bonus on H(M), which keeps all experts in use.
    n_initial_experts : int, optional
        How many experts begin, the others come from them: all are split, several times if need be,
        and a child takes over the tasks in which its parent is worse. By default all begin.
    growth_fraction : float, default=0.1
        The fraction of the steps after which experts are split for the first time, if they are.
    warmup_fraction : float, optional
        Share of the steps in which tasks are divided by what the untrained selector happens to
        tell apart, and experts and selector learn this division. β₁ begins at ten times its value
        then and has it after five times as many steps. By default 0.1 for experts that share
        features and all begin, else 0.
    adaptation : {"auto", "kernel", "last_layer", "gradient", "head", "none"}, default="auto"
        How an expert adapts to a support set: by gradient steps of its head with a learned
        preconditioner, where convolutional experts share their features and classify ("kernel");
        by the closed-form posterior of its last layer; by gradient steps of the whole network
        (MAML) or of its head (ANIL); or not at all. "auto" is "kernel" where that is possible,
        else "last_layer".
    inner_steps : int, optional
        Gradient steps while learning, by default 10 with "kernel", else 5, and at most 10,000;
        `evaluate` and `adapt` may take others.
    inner_rate : float, default=0.03
        Their size at first, with "gradient" and "head".
    learn_rates : bool, default=True
        Whether step sizes are learned for every parameter of every expert (Meta-SGD).
    first_order : bool, default=False
        Whether meta-gradients leave out second derivatives.
    activation : {"relu", "tanh"}, default="relu"
        Units of the hidden layers of an "mlp" expert.
    filters, pool, rank : int, default=32, 5, 16
        Of convolutional experts: filters of the block, window of its average pooling, and with
        "kernel" the directions in which an expert's steps are longer.
    embedding : {"auto", "histogram", "set", "conv", "autoencoder"} or Embedding, default="auto"
        What the selector sees of a support set: mean targets in bins of the input (regression on
        one feature), a learned encoding of the set, or for images a convolutional encoder that
        learns with the selector or that of an autoencoder fitted beforehand, as in the paper; of
        two classes it sees the second. "auto" takes "conv" for classes of images ("autoencoder"
        with k-means), "histogram" where it can, else "set".
    embedding_pool : {"max", "mean", "min"}, default="max"
        How encodings of images are pooled over the samples of a class.
    autoencoder_iter : int, default=2000
        Training steps of the autoencoder, where there is one.
    standardise : bool, default=True
        Whether vectors and numerical targets are standardised, and utilities count in units of
        their own deviation; if not, all are taken as they are.
    warm_start : bool, default=False
        Whether a second `fit` goes on from what the first has learned.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, RandomState or None, default=None
        Source of randomness."""

ATTRIBUTES = """information_ : Information
        Bits processed by both stages in training tasks, overall and per expert; p(m); effective
        number of experts. For meta-learning I(X;M) is what the support set tells of the expert.
    effective_experts_ : float
        2^H(M).
    state_ : State
        The trained hierarchy, its priors and resources.
    history_ : list of Progress
        What was reported during training.
    n_iter_ : int
        Steps taken."""


class TaskLearner(Learnable):
    """What a learner of tasks has learned."""

    state_: State
    history_: list[Progress]
    input_shape_: tuple[int, ...]
    n_outputs_: int
    x_range_: tuple[float, float]
    moments_: tuple[np.ndarray, ...]
    n_iter_: int
    _is_classification: bool
    _attributes = ("input_shape_", "n_outputs_", "x_range_", "moments_", "n_iter_")

    @property
    def scale_(self) -> Scale:
        """Mean and deviation of inputs and targets."""
        check_is_fitted(self, "moments_")
        return Scale(*map(jax.device_put, self.moments_))


@describe(parameters=PARAMETERS)
@dataclass(kw_only=True, eq=False, repr=False)
class MetaSettings(TaskLearner):
    """Settings of a selector of whole tasks, and of experts that adapt to them.

    Parameters
    ----------
    {parameters}
    """

    _renamed_values = {"selector": {"network": "mlp"}}  # noqa: RUF012

    n_experts: int = field(default=4, kw_only=False)
    expert: Any = "auto"
    expert_hidden: tuple[int, ...] = (40,)
    selector: str = "mlp"
    selector_hidden: tuple[int, ...] = (64,)
    beta_selector: float | Scheduled = 30.0
    beta_expert: float | Scheduled = 30.0
    selector_bits: float | None = None
    expert_bits: float | None = None
    expectation: str = "exact"
    momentum_selector: float = 0.99
    momentum_expert: float = 0.99
    max_iter: int = 10_000
    batch_size: int = 32
    learning_rate: float = 0.003
    balance: float = 0.1
    n_initial_experts: int | None = None
    growth_fraction: float = 0.1
    warmup_fraction: float | None = None
    adaptation: str = "auto"
    inner_steps: int | None = None
    inner_rate: float = 0.03
    learn_rates: bool = True
    first_order: bool = False
    activation: str = "relu"
    filters: int = 32
    pool: int = 5
    rank: int = 16
    embedding: Any = "auto"
    embedding_pool: str = "max"
    autoencoder_iter: int = 2000
    standardise: bool = True
    warm_start: bool = False
    verbose: bool = False
    random_state: Any = None

    def _growth(self) -> Growth | None:
        """Return when experts are split, if they are."""
        fraction = check.number("growth_fraction", self.growth_fraction, 0.0, 0.95)
        if self.n_initial_experts is None:
            return None
        n_initial = check.integer("n_initial_experts", self.n_initial_experts, 1)
        if n_initial >= self.n_experts:
            return None
        if self.selector != "mlp":
            raise ValueError(
                "`n_initial_experts` must be None where clusters choose experts, but got "
                f"{n_initial} with selector={self.selector!r}."
            )
        if self.warmup_fraction:
            raise ValueError(
                "`n_initial_experts` must be None where a warm-up divides tasks among all experts, "
                f"but got {n_initial} with warmup_fraction={self.warmup_fraction!r}."
            )
        return Growth.plan(n_initial, self.n_experts, fraction)

    def _warmup_fraction(self, tasks: "TaskDescription") -> float:
        if self.warmup_fraction is not None:
            return check.number("warmup_fraction", self.warmup_fraction, 0.0, 1.0)
        if self._growth() is not None:
            return 0.0
        shared = rule_of_adaptation(self, tasks) == "kernel"
        learned = self.selector == "mlp" and self.n_experts > 1
        return WARMUP_FRACTION if shared and learned else 0.0

    def _warmed_resources(self, warmup_steps: float) -> tuple[Resource, Resource]:
        """Return where β₁ and β₂ come from; with a warm-up a fixed β₁ is larger at first."""
        selector, expert = self._resources()
        if warmup_steps and isinstance(selector, Fixed):
            first = FIRST_BETA * selector.beta
            steps = jnp.asarray(N_WARMUPS * warmup_steps)
            selector = Scheduled(first, selector.beta, steps, "linear")
        return selector, expert


@dataclass(frozen=True)
class TaskDescription:
    """What the shape of a hierarchy depends on in the tasks."""

    input_shape: tuple[int, ...]  # shape of a sample
    n_outputs: int  # number of classes, or of numbers in a target
    x_range: tuple[float, float]  # least and largest input, in standard units
    utility: Utility  # what an answer is worth
    is_classification: bool  # whether targets are classes
    # Support sets of some tasks in standard units, with a leading axis of tasks; None where only
    # the shapes of the hierarchy matter.
    support: Samples | None = None

    @property
    def is_image(self) -> bool:
        """Whether samples have rows and columns."""
        return len(self.input_shape) in (2, 3)

    @property
    def recognised(self) -> tuple[int, ...]:
        """The classes that a selector sees: of two, that of the positives, as in the paper."""
        return (1,) if self.n_outputs == 2 else tuple(range(self.n_outputs))

    def images(self, labels: tuple[int, ...] | None = None) -> np.ndarray:
        """Return some images, of all classes or of those with the given labels."""
        if self.support is None:
            reserve(2, *self.input_shape)
            return np.zeros((2, *self.input_shape), np.float32)
        x, y = (np.asarray(part) for part in self.support)
        chosen = np.ones(y.shape[:2], bool) if labels is None else np.isin(y, labels)
        return x[chosen]

    def like(self, hierarchy: Hierarchy) -> Any:
        """Return a decision of the right shapes for one query, without values."""
        target = jnp.zeros((1, self.n_outputs))
        if self.is_classification:
            target = jnp.zeros(1, int)
        support = Samples(jnp.zeros((1, *self.input_shape)), target)
        batch = jax.tree.map(lambda leaf: leaf[None], TaskInput(support, support.x))
        shapes = eqx.filter_eval_shape(lambda: per_query(jax.vmap(hierarchy)(batch)))
        one = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape[1:], s.dtype), shapes)
        return zeros_like(one)


def kind_of_expert(settings: Any, tasks: TaskDescription) -> Any:
    """Return what experts are: convolutional for images, else multilayer perceptrons."""
    if callable(settings.expert):
        return settings.expert
    kind = check.choice("expert", settings.expert, ("auto", "mlp", "conv"))
    if kind == "conv" and not tasks.is_image:
        raise ValueError(
            "`expert` must be 'mlp' or a function where samples are no images, but got 'conv' for "
            f"samples of shape {tasks.input_shape}."
        )
    return kind if kind != "auto" else "conv" if tasks.is_image else "mlp"


def rule_of_adaptation(settings: Any, tasks: TaskDescription) -> str:
    """Return how experts adapt: by a learned kernel where they may share features."""
    options = ("auto", "kernel", "last_layer", "gradient", "head", "none")
    rule = check.choice("adaptation", settings.adaptation, options)
    shareable = kind_of_expert(settings, tasks) == "conv" and tasks.is_classification
    if rule == "kernel" and not shareable:
        raise ValueError(
            "`adaptation` must be another than 'kernel' where experts are not convolutional "
            f"classifiers, but got 'kernel' with expert={settings.expert!r}."
        )
    return rule if rule != "auto" else "kernel" if shareable else "last_layer"
