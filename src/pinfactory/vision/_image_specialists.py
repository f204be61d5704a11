"""`ImageSpecialists`: few-shot recognition of images by experts for families of classes."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree
from sklearn.base import BaseEstimator
from sklearn.cluster import KMeans
from sklearn.utils.validation import check_is_fitted

from pinfactory import networks
from pinfactory.callbacks import ProgressBar
from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.information import Information
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Fixed
from pinfactory.core.training import Callback, Run, train
from pinfactory.meta.evaluation import Evaluation, Routing, answers, evaluate, measure
from pinfactory.meta.experts import Question, TaskSelector, per_sample
from pinfactory.meta.source import Recipes, TaskSource
from pinfactory.meta.tasks import Episode, Samples, Tasks
from pinfactory.persistence import register, save_model

from ._autoencoder import BOTTLENECK, Autoencoder, train_autoencoder
from ._blocks import OneBlock
from ._learning import SpecialistLearner
from ._selection import PositivesEncoder, nearest, pooled_codes
from ._specialists import Craft, KernelSteps, SharedSpecialists

# Training tasks that are looked at before the first step.
N_LOOKED_AT = 1000


@register("ImageSpecialists")
class ImageSpecialists(BaseEstimator):
    """Learn to recognise new classes of images from a few, with experts for families of classes.

    Tasks have two classes, of which 1 is the one to be recognised, as in Section 6.2. A selector
    looks at the positives of a support set and makes some experts responsible. An expert knows how
    the classes of its family differ from others before it has seen any sample of the task, and
    adapts to the support set by ten gradient steps. The answer is the mixture of theirs.

    Parameters
    ----------
    n_experts : int, default=16
        How many experts there are; one is plain meta-learning.
    inner_steps : int, default=10
        Gradient steps of the adaptation.
    beta_selector : float, default=50.0
        β₁, the selector's resource.
    beta_expert : float, default=100.0
        β₂, the experts' resource.
    balance : float, default=0.1
        Weight of a bonus on H(M), which keeps all experts in use; larger at first.
    selection : {"free energy", "k-means"}, default="free energy"
        How tasks come to experts: by a selector that learns from the experts' free energy, or by
        fixed clusters of the bottleneck of an autoencoder.
    autoencoder_iter : int, default=2000
        Training steps of the autoencoder, where there is one.
    filters : int, default=32
        Filters of the convolutional block.
    pool : int, default=5
        Window of its average pooling.
    rank : int, default=16
        Directions in which an expert's steps are longer.
    momentum : float, default=0.95
        Momentum of the running priors p(m) and p(y|m).
    max_iter : int, default=8000
        Training steps.
    batch_size : int, default=16
        Tasks in a step.
    learning_rate : float, default=0.003
        Step size of Adam at first; it falls to zero along a half cosine.
    warm_start : bool, default=False
        Whether a second `fit` goes on from what the first has learned, such as from tasks with one
        shot, which are quick, to tasks with ten.
    verbose : bool, default=False
        Whether to show a progress bar.
    random_state : int, default=0
        Seed.

    Attributes
    ----------
    hierarchy_ : SharedSpecialists
        Selector and experts.
    """

    hierarchy_: SharedSpecialists
    hierarchy_side_: int

    def __init__(
        self,
        n_experts: int = 16,
        *,
        inner_steps: int = 10,
        beta_selector: float = 50.0,
        beta_expert: float = 100.0,
        balance: float = 0.1,
        selection: str = "free energy",
        autoencoder_iter: int = 2000,
        filters: int = 32,
        pool: int = 5,
        rank: int = 16,
        momentum: float = 0.95,
        max_iter: int = 8000,
        batch_size: int = 16,
        learning_rate: float = 3e-3,
        warm_start: bool = False,
        verbose: bool = False,
        random_state: int = 0,
    ) -> None:
        self.n_experts = n_experts
        self.inner_steps = inner_steps
        self.beta_selector = beta_selector
        self.beta_expert = beta_expert
        self.balance = balance
        self.selection = selection
        self.autoencoder_iter = autoencoder_iter
        self.filters = filters
        self.pool = pool
        self.rank = rank
        self.momentum = momentum
        self.max_iter = max_iter
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.warm_start = warm_start
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, tasks: Tasks) -> "ImageSpecialists":
        """Learn to learn the training tasks."""
        if self.selection not in ("free energy", "k-means"):
            raise ValueError(
                f"`selection` must be 'free energy' or 'k-means', but got {self.selection!r}."
            )
        seen = self._look_at(tasks)
        learner = SpecialistLearner()
        again = self.warm_start and hasattr(self, "hierarchy_")
        hierarchy = self.hierarchy_ if again else self._start(seen)
        like = _decide(hierarchy, Question(seen.support, seen.query.x))
        state = learner.init(
            hierarchy,
            Priors.running(pick(like, 0), self.momentum, self.momentum),
            tuple(Fixed(jnp.asarray(float(b))) for b in (self.beta_selector, self.beta_expert)),
            learning_rate=self.learning_rate,
            decay_steps=self.max_iter,
            balance=self.balance,
        )
        callbacks: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        trained = train(
            learner,
            Run.start(jax.random.key(self.random_state)[None], stack([state])),
            TaskSource(tasks),
            steps=self.max_iter,
            batches=Recipes(tasks, self.batch_size),
            chunk=100,
            callbacks=callbacks,
        )
        self.hierarchy_, self.history_ = pick(trained.run.state, 0).hierarchy, trained.history
        self.hierarchy_side_ = seen.support.x.shape[-1]
        return self

    def evaluate(
        self,
        tasks: Tasks,
        n_tasks: int = 1000,
        *,
        split: str = "test",
        inner_steps: int | None = None,
        routing: Routing = "mixture",
        seed: int = 0,
    ) -> Evaluation:
        """Return the accuracy in new tasks.

        Parameters
        ----------
        tasks
            A distribution of tasks.
        n_tasks
            How many; the same seed gives the same tasks to every learner.
        split
            "train", "validation" or "test".
        inner_steps
            Steps of adaptation, if not as in training; 0 shows what experts know beforehand.
        routing
            Who answers: "mixture", all experts by their responsibility, or "best".
        seed
            Seed of the tasks.
        """
        hierarchy = self._with_steps(inner_steps)
        return evaluate(hierarchy, tasks, n_tasks, split=split, routing=routing, seed=seed)

    def information(
        self, tasks: Tasks, n_tasks: int = 1000, *, split: str = "test", seed: int = 0
    ) -> Information:
        """Return the bits of selector and experts in new tasks."""
        return measure(self._with_steps(None), tasks, n_tasks, split=split, seed=seed)[0]

    def responsibilities(self, X_support: Any, y_support: Any) -> Float[np.ndarray, " m"]:
        """Return p(m|support set)."""
        check_is_fitted(self, "hierarchy_")
        return np.asarray(_select(self.hierarchy_, _samples(X_support, y_support)), float)

    def predict(
        self, X_support: Any, y_support: Any, X: Any, *, inner_steps: int | None = None
    ) -> Int[np.ndarray, " n"]:
        """Return the labels of samples of a new task, in which some labelled ones are known."""
        question = Question(
            _samples(X_support, y_support), jax.device_put(np.asarray(X, np.float32))
        )
        probs = _mixture(self._with_steps(inner_steps), question)
        return np.asarray(probs).argmax(axis=-1)

    def _with_steps(self, steps: int | None) -> SharedSpecialists:
        check_is_fitted(self, "hierarchy_")
        return self.hierarchy_ if steps is None else self.hierarchy_.with_steps(steps)

    def _look_at(self, tasks: Tasks) -> Episode:
        """Return some training tasks, after checking that they are of the right kind."""
        recipes = tasks.draw(np.random.default_rng(self.random_state), N_LOOKED_AT)
        seen = eqx.filter_jit(TaskSource.batch)(TaskSource(tasks), recipes)
        shape, labels = seen.support.x.shape, set(np.unique(seen.support.y).tolist())
        if len(shape) != 4 or labels != {0, 1}:
            raise ValueError(
                "tasks must be of images with labels 0 and 1, but got samples of shape "
                f"{shape[2:]} and labels {sorted(labels)}."
            )
        return seen

    def _start(self, seen: Episode) -> SharedSpecialists:
        images = np.asarray(seen.support.x)
        if self.selection == "free energy":
            selector = self._learned_selector(images.shape[-1])
        else:
            selector = self._fixed_selector(images[np.asarray(seen.support.y) == 1], len(images))
        return self._hierarchy(images.reshape(-1, *images.shape[2:])[:N_LOOKED_AT], selector)

    def _hierarchy(self, images: np.ndarray, selector: TaskSelector) -> SharedSpecialists:
        keys = jax.random.split(jax.random.key(self.random_state))
        trunk = OneBlock.start(images, key=keys[0], filters=self.filters, pool=self.pool)
        return SharedSpecialists(
            selector,
            Craft.start(self.n_experts, trunk.size, self.rank, key=keys[1]),
            jnp.ones(self.n_experts, bool),
            trunk,
            KernelSteps.start(trunk.size, steps=self.inner_steps),
        )

    def _learned_selector(self, side: int) -> TaskSelector:
        keys = jax.random.split(jax.random.key(self.random_state + 1))
        encoder = PositivesEncoder.start(key=keys[0], side=side)
        network: Any = networks.mlp(encoder.size, self.n_experts, (64,), networks.relu, key=keys[1])
        # Logits of the order of one: experts part ways sooner.
        last = jax.device_put(3.0 * np.asarray(network.layers[-1].weight))
        return TaskSelector(encoder, eqx.tree_at(lambda n: n.layers[-1].weight, network, last))

    def _fixed_selector(self, positives: Float[np.ndarray, "n h w"], n_tasks: int) -> TaskSelector:
        key = jax.random.key(self.random_state + 1)
        autoencoder = train_autoencoder(positives, key=key, steps=self.autoencoder_iter)
        codes = pooled_codes(autoencoder, positives.reshape(n_tasks, -1, *positives.shape[1:]))
        clusters = KMeans(self.n_experts, n_init=4, random_state=self.random_state).fit(codes)
        return nearest(autoencoder, clusters.cluster_centers_)

    def save(self, path: Any) -> None:
        """Write the fitted learner to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self, "hierarchy_")
        save_model(self, path)

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        side = self.hierarchy_side_
        return {"params": self.get_params(deep=False), "side": side}, self.hierarchy_

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "ImageSpecialists":
        model = cls(**meta["params"])
        model.hierarchy_side_ = side = int(meta["side"])
        if model.selection == "free energy":
            selector = model._learned_selector(side)
        else:
            blank = Autoencoder.start(key=jax.random.key(0))
            selector = nearest(blank, np.zeros((model.n_experts, BOTTLENECK)))
        model.hierarchy_ = load(model._hierarchy(np.zeros((2, side, side), np.float32), selector))
        return model


def _samples(x: Any, y: Any) -> Samples:
    return Samples(*jax.device_put((np.asarray(x, np.float32), np.asarray(y, np.int32))))


@eqx.filter_jit
def _decide(hierarchy: SharedSpecialists, questions: Question) -> Any:
    return per_sample(jax.vmap(hierarchy)(questions))


@eqx.filter_jit
def _select(hierarchy: SharedSpecialists, support: Samples) -> Float[Array, " m"]:
    return hierarchy.select(Question(support, support.x)).probs


@eqx.filter_jit
def _mixture(hierarchy: SharedSpecialists, question: Question) -> Float[Array, "q 2"]:
    answer = answers(hierarchy, question, "mixture")
    assert isinstance(answer, Categorical)
    return answer.probs
