"""What few-shot baselines share: a network, training on tasks, evaluation on new ones."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key, PyTree
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import Learnable, warm_identity
from pinfactory.callbacks import fingerprint
from pinfactory.core.batches import Batches, Source
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.constraints import Schedule
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.learning import Learner, State, with_schedules
from pinfactory.core.training import Progress, Run
from pinfactory.meta.build import headed
from pinfactory.meta.evaluation import TaskScores, score_tasks, task_score
from pinfactory.meta.experts import HeadedNetwork
from pinfactory.meta.source import TaskBatches, TaskSource, image_samples, sample_tasks
from pinfactory.meta.tasks import Episode, Samples, Tasks
from pinfactory.networks import reserve
from pinfactory.vision import FourBlocks, OneBlock

from .adapted import AdaptedBaseline

# Images that stored statistics are taken from.
N_IMAGES = 1000
# Tasks that are answered at once in an evaluation.
BLOCK = 50

PARAMETERS = """blocks : {1, 4}, default=1
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
    random_state : int, RandomState or None, default=None
        Source of randomness."""


class FewShotModel(eqx.Module):
    """What is trained: anything that answers the queries of a task from its support set."""

    @abstractmethod
    def __call__(self, support: Samples, query: Float[Array, "q ..."]) -> Float[Array, "q ways"]:
        """Return logits of the queries."""


class CrossEntropy(eqx.Module):
    """The mean cross-entropy of a batch, as a loss for `core.learning.Learner`."""

    # Maps the model and a batch to logits and the classes they are for.
    logits: Callable[[Any, Any], tuple[Array, Array]] = eqx.field(static=True)

    def __call__(
        self, model: Any, state: State, batch: Any, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[None, dict[str, Array]]]:
        logits, labels = self.logits(model, batch)
        loss = jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        return loss, (None, {"objective": -loss})


def query_logits(model: FewShotModel, batch: Episode) -> tuple[Array, Array]:
    """Return the logits of the queries of a batch of tasks, and their classes."""
    return jax.vmap(model)(batch.support, batch.query.x), batch.query.y


class TrainedOnTasks(Learnable):
    """What a few-shot baseline has learned."""

    state_: State
    history_: list[Progress]
    input_shape_: tuple[int, ...]
    n_outputs_: int
    n_iter_: int
    _attributes: tuple[str, ...] = ("input_shape_", "n_outputs_", "n_iter_")


def build_network(
    settings: Any, images: np.ndarray, outputs: int, key: Key[Array, ""]
) -> HeadedNetwork:
    """Return convolutional features with a linear head."""
    keys = jax.random.split(key)
    features: OneBlock | FourBlocks
    if settings.blocks == 1:
        features = OneBlock.start(images, key=keys[0])
    else:
        stride = 2 if settings.strided else 1
        features = FourBlocks.start(images.shape[1:], key=keys[0], stride=stride)
    return headed(features, features.size, outputs, keys[1])


@dataclass(kw_only=True, eq=False, repr=False)
class FewShotBaseline(TrainedOnTasks):
    """A learner of image tasks; subclasses describe its parameters."""

    blocks: int = field(default=1, kw_only=False)
    max_iter: int = 4000
    batch_size: int = 16
    learning_rate: float = 1e-3
    transductive: bool = False
    strided: bool = False
    warm_start: bool = False
    verbose: bool = False
    random_state: Any = None
    # What makes the network, and how the learning rate falls; the paper has others.
    _build_network: ClassVar[Callable[..., HeadedNetwork]] = staticmethod(build_network)
    _schedule: ClassVar[Callable[..., Any]] = staticmethod(Schedule.cosine_decay)

    @abstractmethod
    def _model(self, network: HeadedNetwork) -> FewShotModel:
        """Return what is to be trained."""

    @property
    def model_(self) -> FewShotModel:
        """What answers new tasks."""
        check_is_fitted(self)
        return self.state_.model

    # ------------------------------------------------------------------------------- training

    def fit(
        self, tasks: Tasks, *, callbacks: Any = None, checkpoint: str | Path | None = None
    ) -> "FewShotBaseline":
        """Learn to learn the training tasks.

        Parameters
        ----------
        tasks : Tasks
            A distribution of image tasks.
        callbacks : Callback or list of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.
        checkpoint : path, optional
            File that is written along the way; if it exists, training goes on from it.

        Returns
        -------
        self
        """
        if self.blocks not in (1, 4):
            raise ValueError(f"`blocks` must be 1 or 4, but got {self.blocks}.")
        with self._learning():
            seed = check.seed(self.random_state)
            seen = sample_tasks(tasks, seed)
            images, previous = image_samples(seen)[:N_IMAGES], getattr(self, "state_", None)
            self.input_shape_, self.n_outputs_ = images.shape[1:], int(seen.support.y.max()) + 1
            source, batches = self._data(tasks)
            learner, state = self._start(images, jax.random.key(seed))
            identity = {"tasks": fingerprint(*jax.tree.leaves(seen))} if checkpoint else None
            if self.warm_start and previous is not None:
                state = _continued(state, previous)
                if identity:
                    identity |= warm_identity(previous.model)
            trained = self._train(
                learner,
                Run.start(jax.random.key(seed)[None], stack([state])),
                source,
                callbacks=callbacks,
                checkpoint=checkpoint,
                identity=identity,
                steps=self.max_iter,
                batches=batches,
                chunk=100,
            )
            self.history_, self.n_iter_ = trained.history, int(trained.run.step)
            self.state_ = self._calibrated(pick(trained.run.state, 0), images)
            self._finish(tasks)
        return self

    def _data(self, tasks: Tasks) -> tuple[Source, Batches]:
        """Return what is learned from: by default the tasks themselves."""
        return TaskSource(tasks), TaskBatches(
            tasks, check.integer("batch_size", self.batch_size, 1)
        )

    def _trained(self, images: np.ndarray, key: Key[Array, ""]) -> tuple[PyTree, CrossEntropy]:
        """Return what is trained, and by which loss: by default the model, on queries."""
        network = self._build_network(self, images, self.n_outputs_, key)
        return self._model(network), CrossEntropy(query_logits)

    def _finish(self, tasks: Tasks) -> None:
        """Do what is left after training."""

    def _start(self, images: np.ndarray, key: Key[Array, ""]) -> tuple[Learner, State]:
        model, loss = self._trained(images, key)
        steps = check.integer("max_iter", self.max_iter, 1)
        rate = check.number("learning_rate", self.learning_rate, 0.0)
        learner = Learner(loss)
        return learner, learner.init(model, learning_rate=self._schedule(rate, steps))

    def _as_asked(self, found: Run, asked: Run) -> Run:
        return with_schedules(found, asked)

    def _calibrated(self, state: State, images: np.ndarray) -> State:
        """Store the statistics of training images, so that samples no longer depend on others."""
        if self.transductive:
            return state
        return _change_blocks(state, lambda blocks: _calibrated(blocks, jax.device_put(images)))

    def _untrained(self) -> State:
        reserve(2, *self.input_shape_)
        images = np.zeros((2, *self.input_shape_), np.float32)
        return self._calibrated(self._start(images, jax.random.key(0))[1], images)

    # ----------------------------------------------------------------------------- evaluation

    @with_library_settings
    def evaluate(
        self, tasks: Tasks, n_tasks: int = 1000, *, split: str = "test", seed: int = 0
    ) -> TaskScores:
        """Return the accuracy in new tasks; the same seed gives the same tasks to every learner."""
        model = self.model_

        def score(source: Source, recipes: PyTree) -> Float[Array, " n"]:
            return _accuracies(model, source, recipes)

        number = check.integer("n_tasks", n_tasks, 2)
        return score_tasks(score, tasks, number, split=split, seed=seed, block=BLOCK)

    def adapt(self, X: Any, y: Any) -> AdaptedBaseline:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, height, width) or (n_samples, height, width, channels)
            Images of the support set.
        y : array-like of shape (n_samples,)
            Their labels, of any type; as many classes as in the tasks learned from, or fewer.

        Returns
        -------
        AdaptedBaseline
            A fitted estimator with `predict`, `predict_proba` and `score`.
        """
        return AdaptedBaseline(self).fit(X, y)


def _change_blocks(tree: Any, change: Callable[[FourBlocks], FourBlocks]) -> Any:
    """Return the tree with other blocks, if it has four."""

    def is_blocks(part: Any) -> bool:
        return isinstance(part, FourBlocks)

    return jax.tree.map(lambda p: change(p) if is_blocks(p) else p, tree, is_leaf=is_blocks)


def _continued(state: State, previous: State) -> State:
    """Return a new state with the model that was trained before, as it was trained."""
    model = _change_blocks(previous.model, FourBlocks.uncalibrated)
    old, new = (
        [leaf.shape for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))]
        for tree in (model, state.model)
    )
    if old != new:
        raise ValueError(
            "a warm start must have images, classes and a network of the same shapes as before."
        )
    return eqx.tree_at(lambda s: s.model, state, model)


_calibrated = compiled_fully(FourBlocks.calibrated)


@compiled_fully
def _accuracies(model: FewShotModel, source: Source, recipes: PyTree) -> Float[Array, " n"]:
    batch = source.batch(recipes)
    logits, labels = query_logits(model, batch)
    return jax.vmap(task_score)(Categorical(logits), labels)
