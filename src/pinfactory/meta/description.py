"""What a hierarchy depends on in the tasks, and what follows for its settings."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pinfactory import settings as check
from pinfactory.core.hierarchy import Hierarchy, zeros_like
from pinfactory.core.learning import Utility
from pinfactory.networks import reserve

from .experts import TaskInput, per_query
from .tasks import Samples


@dataclass(frozen=True)
class TaskDescription:
    """What the shape of a hierarchy depends on in the tasks.

    Attributes
    ----------
    input_shape
        Shape of a sample.
    n_outputs
        Number of classes, or of numbers in a target.
    x_range
        Least and largest input, in standard units.
    utility
        What an answer is worth.
    is_classification
        Whether targets are classes.
    support
        Support sets of some tasks in standard units, with a leading axis of tasks; None where
        only the shapes of the hierarchy matter.
    """

    input_shape: tuple[int, ...]
    n_outputs: int
    x_range: tuple[float, float]
    utility: Utility
    is_classification: bool
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
