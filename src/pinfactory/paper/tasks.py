"""Meta-learning as in Sections 5.1, 6.1 and 6.2: sinusoids and binary tasks of characters."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.constraints import Constraints
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import FamilyExpert, Hierarchy, assemble
from pinfactory.core.learning import Learner, State
from pinfactory.meta import MetaSpecialistClassifier, MetaSpecialistRegressor
from pinfactory.meta.build import build_block, headed
from pinfactory.meta.experts import Embedding, Histogram, MetaExpert, TaskSelector
from pinfactory.meta.learner import MetaSpecialist
from pinfactory.meta.parameters import TaskDescription
from pinfactory.persistence import register
from pinfactory.vision import Autoencoder

from .algorithm_1 import (
    AdamSteps,
    AlgorithmOneLoss,
    BinnedTargets,
    Dropout,
    MaxNormLearner,
    PlainBlock,
    PositiveCodes,
    gaussian_of_log_variance,
)

# Settings of our own meta-learners that Algorithm 1 has no use for.
_WITHOUT_EFFECT = (
    *("expert", "expectation", "balance", "warmup_fraction", "adaptation", "learn_rates"),
    *("first_order", "pool", "rank", "selector", "embedding", "embedding_pool"),
    *("autoencoder_iter", "standardise", "n_initial_experts", "growth_fraction"),
)

# How everything learns. "Adam with a learning rate of 3e-4" and "a meta-batch size of 16" are the
# paper's for characters; it gives no momenta and no number of steps, and for sinusoids no rate.
ADAM: dict[str, Any] = {
    "learning_rate": 3e-4,
    "inner_rate": 3e-4,
    "inner_steps": 10,
    "batch_size": 16,
    "max_iter": 10_000,
    "momentum_selector": 0.99,
    "momentum_expert": 0.99,
}


class AlgorithmOne(MetaSpecialist):
    """What classifier and regressor of Algorithm 1 share.

    `inner_steps` and `inner_rate` are the steps of Adam in a new task, 10 by default; experts are
    trained without any. `evaluate` and `adapt` with ``routing="best"`` ask the chosen expert alone.
    """

    dropout: float = 0.0
    max_norm: float | None = None

    def hierarchy(self, inner_steps: int | None = None) -> Hierarchy:
        """Return selector and experts; experts take `inner_steps` in a new task."""
        ten = 10 if self.inner_steps is None else self.inner_steps
        return super().hierarchy(ten if inner_steps is None else inner_steps)

    def _build(self, tasks: TaskDescription, seed: int) -> Hierarchy:
        for field in dataclasses.fields(self):
            if field.name in _WITHOUT_EFFECT and getattr(self, field.name) != field.default:
                raise ValueError(
                    f"`{field.name}` has no effect in Algorithm 1 and must be left at "
                    f"{field.default!r}, but got {getattr(self, field.name)!r}."
                )
        n_experts = check.integer("n_experts", self.n_experts, 1)
        return assemble(
            jax.random.key(seed),
            lambda key: self._task_selector(tasks, key),
            lambda key: self._expert(tasks, key),
            n_experts,
        )

    def _task_selector(self, tasks: TaskDescription, key: Key[Array, ""]) -> TaskSelector:
        embedding: Embedding
        activation = networks.relu if tasks.is_image else networks.tanh
        if tasks.is_image:
            autoencoder = Autoencoder.start(tasks.input_shape, key=jax.random.fold_in(key, 0))
            embedding = PositiveCodes(autoencoder, tasks.recognised)
        else:
            low, high = map(jnp.asarray, tasks.x_range)
            embedding = BinnedTargets(Histogram(low, high, targets=tasks.n_outputs))
        hidden = check.sizes("selector_hidden", self.selector_hidden)
        key = jax.random.fold_in(key, 1)
        network: Any = networks.mlp(embedding.size, self.n_experts, hidden, activation, key=key)
        layers: list[Any] = []
        for layer in network.layers:
            layers.append(layer)
            # A dropout layer after the units of every hidden layer.
            if self.dropout and isinstance(layer, eqx.nn.Lambda):
                layers.append(Dropout(check.number("dropout", self.dropout, 0.0, 0.99)))
        return TaskSelector(embedding, eqx.nn.Sequential(layers))

    def _expert(self, tasks: TaskDescription, key: Key[Array, ""]) -> MetaExpert:
        keys = jax.random.split(key)
        if tasks.is_image:
            block = PlainBlock(build_block(self, tasks, keys[0]))
            size = len(block(jnp.zeros(tasks.input_shape)))
            initial = FamilyExpert(
                headed(block, size, tasks.n_outputs, keys[1]), Categorical.from_logits
            )
        else:
            (width,) = check.sizes("expert_hidden", self.expert_hidden)
            activation = networks.relu if self.activation == "relu" else networks.tanh
            body = networks.linear(math.prod(tasks.input_shape), width, key=keys[0])
            features = eqx.nn.Sequential([body, eqx.nn.Lambda(activation)])
            initial = FamilyExpert(
                headed(features, width, 2 * tasks.n_outputs, keys[1]), gaussian_of_log_variance
            )
        rate = check.number("inner_rate", self.inner_rate, 0.0, open_low=True)
        return MetaExpert(initial, AdamSteps(tasks.utility, rate, 0))

    def _start(
        self, model: Hierarchy, tasks: TaskDescription, *, new: bool
    ) -> tuple[Learner, State]:
        loss = AlgorithmOneLoss(self._utility())
        learner = Learner(loss)
        if self.max_norm is not None:
            max_norm = check.number("max_norm", self.max_norm, 0.0, open_low=True)
            learner = MaxNormLearner(loss, max_norm=max_norm)
        constraints = Constraints(self._priors(tasks.like(model)), self._resources())
        rate = check.number("learning_rate", self.learning_rate, 0.0, open_low=True)
        return learner, learner.init(model, constraints, learning_rate=rate)


@register("paper.TaskRegressor")
@dataclass(kw_only=True, eq=False, repr=False)
class TaskRegressor(AlgorithmOne, MetaSpecialistRegressor):
    """Algorithm 1 for regression on one feature; made by `pinfactory.paper.sinusoids`."""

    standardise: bool = False


@register("paper.TaskClassifier")
@dataclass(kw_only=True, eq=False, repr=False)
class TaskClassifier(AlgorithmOne, MetaSpecialistClassifier):
    """Algorithm 1 for binary tasks of images; made by `pinfactory.paper.few_shot`.

    Parameters
    ----------
    dropout
        Share of the selector's hidden units that are left out in a step.
    max_norm
        Greatest length of the weights into a unit of the selector.
    """

    standardise: bool = False
    dropout: float = 0.5
    max_norm: float | None = 2.0

    def _build(self, tasks: TaskDescription, seed: int) -> Hierarchy:
        if not tasks.is_image or tasks.n_outputs != 2:
            raise ValueError(
                "tasks must be of images of two classes, as in the paper, but got samples of shape "
                f"{tasks.input_shape} of {tasks.n_outputs} classes; use MetaSpecialistClassifier."
            )
        return super()._build(tasks, seed)


def sinusoids(n_experts: int = 16, **changes: Any) -> TaskRegressor:
    """Return the paper's meta-learner of sinusoids (Section 6.1 and Appendix A).

    Two tanh layers of 16 select, experts with one hidden layer learn mean and log-variance, the
    loss is Huber's, β₁ = 25 and β₂ = 1.25. `changes` are other settings; width of the experts,
    learning rate, tasks in a batch and number of steps are not in the paper.
    """
    settings: dict[str, Any] = {
        "selector_hidden": (16, 16),
        "expert_hidden": (40,),
        "activation": "relu",
        "utility": "huber",
        "beta_selector": 25.0,
        "beta_expert": 1.25,
        **ADAM,
    }
    return TaskRegressor(n_experts, **(settings | changes))


def few_shot(n_experts: int = 16, **changes: Any) -> TaskClassifier:
    """Return the paper's meta-learner of characters (Section 6.2, Table 2 and Appendix A).

    One block of 32 filters for each expert, Adam 3e-4, 16 tasks in a batch; β₁ = 20, β₂ = 2.5 for
    up to 4 experts, and 50, 1.25 and a third selector layer of 32 from 8 on. `changes` are other
    settings; share of dropout, greatest norm and number of steps are not in the paper.
    """
    many = n_experts >= 8
    settings: dict[str, Any] = {
        "selector_hidden": (32,) * (3 if many else 2),
        "filters": 32,
        "beta_selector": 50.0 if many else 20.0,
        "beta_expert": 1.25 if many else 2.5,
        **ADAM,
    }
    return TaskClassifier(n_experts, **(settings | changes))
