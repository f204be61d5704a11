"""Pre-training on all classes at once, then a few gradient steps on a new task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PyTree

from pinfactory.core.batches import Epochs, Source
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.tasks import Tasks
from pinfactory.persistence import register
from pinfactory.vision import SAMPLES

from ._few_shot import FewShotBaseline, FewShotModel, headed
from ._gradient import gradient_model
from ._training import Descent


class Labelled(NamedTuple):
    """Images with the number of their class among all."""

    images: Array
    labels: Array


class LabelledSource(Source):
    """Images kept as bytes, which turn to numbers in the step that sees them."""

    images: Array
    labels: Int[Array, " n"]

    def batch(self, chosen: Any) -> Labelled:
        """Return some images with ink 1 on ground 0."""
        return Labelled(self.images[chosen].astype(jnp.float32) / 255.0, self.labels[chosen])


def class_loss(network: HeadedNetwork, batch: Labelled) -> Float[Array, ""]:
    """Return the mean cross-entropy of telling all classes apart."""
    logits = jax.vmap(network, axis_name=SAMPLES)(batch.images)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels))


@register("PreTraining")
class PreTraining(FewShotBaseline):
    """A classifier of all training classes, fine-tuned on a new task with a new head.

    Tasks must have a method `labelled(split)` that returns images (bytes) and labels, as
    `pinfactory.meta.tasks.Omniglot` has. The step size of the fine-tuning is the one that does
    best on validation tasks.

    Parameters
    ----------
    test_steps : int, default=10
        Gradient steps of the whole network on a new task.
    inner_rates : sequence of float, default=(0.001, 0.003, 0.01, 0.03)
        Step sizes to choose from.
    **others
        See `FewShotBaseline`; a step has as many images as `batch_size` says.
    """

    def __init__(
        self,
        blocks: int = 1,
        *,
        test_steps: int = 10,
        inner_rates: Sequence[float] = (0.001, 0.003, 0.01, 0.03),
        max_iter: int = 4000,
        batch_size: int = 128,
        learning_rate: float = 1e-3,
        transductive: bool = False,
        strided: bool = False,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: int = 0,
    ) -> None:
        super().__init__(
            blocks,
            max_iter=max_iter,
            batch_size=batch_size,
            learning_rate=learning_rate,
            transductive=transductive,
            strided=strided,
            warm_start=warm_start,
            verbose=verbose,
            random_state=random_state,
        )
        self.test_steps = test_steps
        self.inner_rates = inner_rates

    def fit(self, tasks: Tasks, *, checkpoint: str | Path | None = None) -> "PreTraining":
        """Learn to tell all training classes apart; parameters as in `FewShotBaseline.fit`."""
        if not hasattr(tasks, "labelled"):
            raise TypeError(
                "`tasks` must have a method `labelled` that returns all images with their "
                f"classes, but {type(tasks).__name__} has none."
            )
        some, n_ways = self._look_at(tasks)
        images, labels = tasks.labelled("train")
        keys = jax.random.split(jax.random.key(self.random_state))
        start = self._network(some, int(labels.max()) + 1, keys[0])
        source = LabelledSource(jax.device_put(images), jax.device_put(labels))
        batches = Epochs(len(images), self.batch_size)
        trained = self._train(Descent(class_loss), start, source, batches, checkpoint)
        network = headed(trained.features, trained.head.weight.shape[1], n_ways, keys[1])
        self.input_shape_, self.n_outputs_ = some.shape[1:], n_ways
        scores = []
        for rate in self.inner_rates:
            self.inner_rate_ = rate
            self.model_ = self._model(network)
            self._settle(some)
            scores.append(self.evaluate(tasks, 200, split="validation").mean)
        self.inner_rate_ = self.inner_rates[int(np.argmax(scores))]
        self.model_ = self._model(network)
        self._settle(some)
        return self

    def _model(self, network: HeadedNetwork) -> FewShotModel:
        return gradient_model(network, rate=self.inner_rate_, steps=self.test_steps, part="network")

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        meta, tree = super()._to_file()
        n_classes = len(self._learned.head.weight)
        return meta | {"n_classes": n_classes, "inner_rate": self.inner_rate_}, tree

    def _skeleton(self, images: np.ndarray, network: HeadedNetwork, meta: dict[str, Any]) -> PyTree:
        self.inner_rate_ = meta["inner_rate"]
        super()._skeleton(images, network, meta)
        return self._network(images, meta["n_classes"], jax.random.key(0))
