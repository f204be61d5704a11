"""Pre-training on all classes at once, then a few gradient steps on a new task."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import describe
from pinfactory.core.batches import Batches, Epochs, Source
from pinfactory.meta.build import headed
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import Samples, Tasks
from pinfactory.persistence import register
from pinfactory.vision import SAMPLES

from .few_shot import PARAMETERS, CrossEntropy, FewShotBaseline, FewShotModel
from .gradient import gradient_model

# A step has images instead of tasks.
IMAGES = "batch_size : int, default=128\n        Images"
# More classes than this, and than there are in training, no new task has.
MOST_WAYS = 1000


class LabelledSource(Source):
    """Images kept as bytes, which turn to numbers in the step that sees them."""

    images: Array
    labels: Int[Array, " n"]

    def batch(self, chosen: Any) -> Samples:
        """Return some images with ink 1 on ground 0, and their classes among all."""
        return Samples(self.images[chosen].astype(jnp.float32) / 255.0, self.labels[chosen])


def class_logits(network: HeadedNetwork, batch: Samples) -> tuple[Array, Array]:
    """Return the logits of all classes for a batch of images, and their classes."""
    return jax.vmap(network, axis_name=SAMPLES)(batch.x), batch.y


@register("PreTraining")
@describe(parameters=PARAMETERS.replace("batch_size : int, default=16\n        Tasks", IMAGES))
@dataclass(kw_only=True, eq=False, repr=False)
class PreTraining(FewShotBaseline):
    """A classifier of all training classes, fine-tuned on a new task with a new head.

    Tasks must have a method `labelled(split)` that returns images (bytes) and labels, as
    `pinfactory.meta.tasks.Omniglot` has. The step size of the fine-tuning is the one that does
    best on validation tasks.

    Parameters
    ----------
    {parameters}
    test_steps : int, default=10
        Gradient steps of the whole network on a new task, at most 10,000.
    inner_rates : sequence of float, default=(0.001, 0.003, 0.01, 0.03)
        Step sizes to choose from.
    """

    batch_size: int = 128
    test_steps: int = 10
    inner_rates: Sequence[float] = (0.001, 0.003, 0.01, 0.03)
    _attributes = (*FewShotBaseline._attributes, "n_classes_", "inner_rate_")

    def _check_state(self) -> None:
        # No array of a file tells how many classes a new task has.
        check.integer("n_outputs_", self.n_outputs_, 1, max(self.n_classes_, MOST_WAYS))

    @property
    def model_(self) -> FewShotModel:
        """What answers new tasks: the trained features with a new head."""
        check_is_fitted(self)
        return self._model(self.state_.model)

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        # Its weights are replaced by zeros, from which gradient steps begin.
        n_features = network.head.weight.shape[1]
        new = headed(network.features, n_features, self.n_outputs_, jax.random.key(0))
        steps = check.integer("test_steps", self.test_steps, 0, check.MOST_STEPS)
        return gradient_model(new, rate=self.inner_rate_, steps=steps, part="network")

    def _data(self, tasks: Tasks) -> tuple[Source, Batches]:
        # Needed at the end of training alone, which should not be in vain.
        rates = self.inner_rates
        if not isinstance(rates, Sequence) or isinstance(rates, str) or not rates:
            raise ValueError(f"`inner_rates` must be a sequence of step sizes, but got {rates!r}.")
        for rate in rates:
            check.number("inner_rates", rate, 0.0, open_low=True)
        if not hasattr(tasks, "labelled"):
            raise TypeError(
                "`tasks` must have a method `labelled` that returns all images with their "
                f"classes, but {type(tasks).__name__} has none."
            )
        every, labels = tasks.labelled("train")
        self.n_classes_ = int(labels.max()) + 1
        batches = Epochs(len(every), check.integer("batch_size", self.batch_size, 1))
        return LabelledSource(jax.device_put(every), jax.device_put(labels)), batches

    def _trained(self, images: np.ndarray, key: Key[Array, ""]) -> tuple[PyTree, CrossEntropy]:
        return self._build_network(self, images, self.n_classes_, key), CrossEntropy(class_logits)

    def _finish(self, tasks: Tasks) -> None:
        """Choose the step size of the fine-tuning."""
        scores = []
        for rate in self.inner_rates:
            self.inner_rate_ = rate
            scores.append(self.evaluate(tasks, 200, split="validation").mean)
        self.inner_rate_ = self.inner_rates[int(np.argmax(scores))]
