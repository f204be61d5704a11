"""What few-shot baselines share: a network, training on tasks, evaluation on new ones."""

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.callbacks import Checkpoint, ProgressBar
from pinfactory.core.batches import Source
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Callback, Run, train
from pinfactory.meta.evaluation import Evaluation, score_tasks
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.looking import images_of, look_at
from pinfactory.meta.source import Recipes, TaskSource
from pinfactory.meta.tasks import Samples, Tasks
from pinfactory.persistence import save_model
from pinfactory.vision import FourBlocks, OneBlock

from ._adapted import AdaptedBaseline
from ._training import Descent, DescentState, episode_loss

# Images that stored statistics are taken from.
N_IMAGES = 1000
# Tasks that are answered at once in an evaluation.
BLOCK = 50


class FewShotModel(eqx.Module):
    """What is trained: anything that answers the queries of a task from its support set."""

    @property
    @abstractmethod
    def network(self) -> HeadedNetwork:
        """Features and head."""

    @abstractmethod
    def __call__(self, support: Samples, query: Float[Array, "q h w"]) -> Float[Array, "q ways"]:
        """Return logits of the queries."""


class FewShotBaseline(BaseEstimator):
    """A learner of image tasks.

    Parameters
    ----------
    blocks : {1, 4}, default=1
        The network: the paper's one block of 32 filters, or the published one with four of 64.
    max_iter : int, default=4000
        Training steps.
    batch_size : int, default=16
        Tasks in a step.
    learning_rate : float, default=0.001
        Step size of Adam at first; it falls to zero along a half cosine.
    transductive : bool, default=False
        Whether four blocks are normalised by the statistics of all queries of a new task
        together, as in the original MAML, instead of stored statistics of training images. One
        block always has stored statistics.
    strided : bool, default=False
        Whether four blocks halve an image by convolutions with stride 2, as in the original MAML,
        instead of by maxima over 2 × 2 pixels. It is a quarter of the work.
    warm_start : bool, default=False
        Whether a second `fit` goes on from what the first has learned.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, default=0
        Seed.

    Attributes
    ----------
    model_ : FewShotModel
        What was trained.
    """

    model_: FewShotModel
    input_shape_: tuple[int, ...]
    n_outputs_: int
    _learned: PyTree

    def __init__(
        self,
        blocks: int = 1,
        *,
        max_iter: int = 4000,
        batch_size: int = 16,
        learning_rate: float = 1e-3,
        transductive: bool = False,
        strided: bool = False,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: int = 0,
    ) -> None:
        self.blocks = blocks
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.transductive = transductive
        self.strided = strided
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    @abstractmethod
    def _model(self, network: HeadedNetwork) -> FewShotModel:
        """Return what is to be trained."""

    def fit(self, tasks: Tasks, *, checkpoint: str | Path | None = None) -> "FewShotBaseline":
        """Learn to learn the training tasks.

        Parameters
        ----------
        tasks
            A distribution of tasks.
        checkpoint
            File that is written along the way; if it exists, training goes on from it.
        """
        images, n_ways = self._look_at(tasks)
        key = jax.random.key(self.random_state)
        start = self._model(self._network(images, n_ways, key))
        self.model_ = self._train(
            Descent(episode_loss),
            start,
            TaskSource(tasks),
            Recipes(tasks, self.batch_size),
            checkpoint,
        )
        self.input_shape_, self.n_outputs_ = images.shape[1:], n_ways
        self._settle(images)
        return self

    def evaluate(
        self, tasks: Tasks, n_tasks: int = 1000, *, split: str = "test", seed: int = 0
    ) -> Evaluation:
        """Return the accuracy in new tasks; the same seed gives the same tasks to every learner."""
        check_is_fitted(self, "model_")

        def score(source: Source, recipes: PyTree) -> Float[Array, " n"]:
            return _accuracies(self.model_, source, recipes)

        number = check.integer("n_tasks", n_tasks, 2)
        return score_tasks(score, tasks, number, split=split, seed=seed, block=BLOCK)

    def adapt(self, X: Any, y: Any) -> AdaptedBaseline:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, height, width)
            Images of the support set.
        y : array-like of shape (n_samples,)
            Their labels, of any type; as many classes as in the tasks learned from, or fewer.

        Returns
        -------
        AdaptedBaseline
            A fitted estimator with `predict`, `predict_proba` and `score`.
        """
        return AdaptedBaseline(self).fit(X, y)

    def predict(self, X_support: Any, y_support: Any, X: Any) -> np.ndarray:
        """Return the labels of samples of a new task, in which some labelled ones are known."""
        return self.adapt(X_support, y_support).predict(X)

    def save(self, path: Any) -> None:
        """Write the fitted learner to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self, "model_")
        save_model(self, path)

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        meta = {
            "params": self.get_params(deep=False),
            "input_shape": self.input_shape_,
            "n_outputs": self.n_outputs_,
        }
        return meta, (self._learned, self.model_)

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "FewShotBaseline":
        learner = cls(**meta["params"])
        learner.input_shape_, learner.n_outputs_ = tuple(meta["input_shape"]), meta["n_outputs"]
        blank = np.zeros((2, *learner.input_shape_), np.float32)
        network = learner._network(blank, learner.n_outputs_, jax.random.key(0))
        learned = learner._skeleton(blank, network, meta)
        learner._learned, learner.model_ = load((learned, learner.model_))
        return learner

    def _skeleton(self, images: np.ndarray, network: HeadedNetwork, meta: dict[str, Any]) -> PyTree:
        """Give `model_` its shape, and return that of what is trained."""
        self.model_ = learned = self._model(network)
        self._settle(images)
        return learned

    def _look_at(self, tasks: Tasks) -> tuple[Float[np.ndarray, "n h w"], int]:
        """Return some images of training tasks, and how many classes a task has."""
        if self.blocks not in (1, 4):
            raise ValueError(f"`blocks` must be 1 or 4, but got {self.blocks}.")
        for name in ("max_iter", "batch_size"):
            check.integer(name, getattr(self, name), 1)
        check.number("learning_rate", self.learning_rate, 0.0)
        seen = look_at(tasks, self.random_state)
        return images_of(seen)[:N_IMAGES], int(seen.support.y.max()) + 1

    def _train(
        self,
        descent: Descent,
        start: PyTree,
        source: Source,
        batches: Any,
        checkpoint: str | Path | None,
    ) -> Any:
        if self.warm_start and hasattr(self, "_learned"):
            start = self._learned
        state = DescentState.start(start, self.learning_rate, self.max_iter)
        run = Run.start(jax.random.key(self.random_state)[None], stack([state]))
        callbacks: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        if checkpoint is not None:
            callbacks.append(Checkpoint(checkpoint))
            if Path(checkpoint).exists():
                run = Checkpoint.resume(checkpoint, run)
        trained = train(
            descent,
            run,
            source,
            steps=self.max_iter,
            batches=batches,
            chunk=100,
            callbacks=callbacks,
        )
        self.history_ = trained.history
        # As it was trained; `model_` is settled for new tasks.
        self._learned = pick(trained.run.state, 0).model
        return self._learned

    def _settle(self, images: np.ndarray) -> None:
        """Store the statistics of training images, so that samples no longer depend on others."""
        features = self.model_.network.features
        if isinstance(features, FourBlocks) and not self.transductive:
            stored = eqx.filter_jit(FourBlocks.calibrated)(features, jax.device_put(images))
            self.model_ = eqx.tree_at(lambda m: m.network.features, self.model_, stored)

    def _network(self, images: np.ndarray, outputs: int, key: Key[Array, ""]) -> HeadedNetwork:
        """Return convolutional features with a linear head."""
        keys = jax.random.split(key)
        if self.blocks == 1:
            one = OneBlock.start(images, key=keys[0])
            return headed(one, one.size, outputs, keys[1])
        four = FourBlocks.start(key=keys[0], stride=2 if self.strided else 1)
        return headed(four, four.size(images.shape[-1]), outputs, keys[1])


def headed(features: Any, size: int, outputs: int, key: Key[Array, ""]) -> HeadedNetwork:
    """Put a new linear head on features."""
    head = networks.linear(size, outputs, key=key)
    assert isinstance(head, eqx.nn.Linear)
    return HeadedNetwork(features, head)


@eqx.filter_jit
def _accuracies(model: FewShotModel, source: Source, recipes: PyTree) -> Float[Array, " n"]:
    batch = source.batch(recipes)
    logits = jax.vmap(model)(batch.support, batch.query.x)
    return jnp.mean(jnp.argmax(logits, axis=-1) == batch.query.y, axis=-1)
