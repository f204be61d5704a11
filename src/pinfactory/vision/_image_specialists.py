"""`ImageSpecialists`: few-shot recognition of images by experts for families of classes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.callbacks import ProgressBar
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.information import Estimate, Information
from pinfactory.core.priors import Priors
from pinfactory.core.training import Callback, Run, train
from pinfactory.estimators import CommitteeInformation
from pinfactory.meta.evaluation import Evaluation, Routing, evaluate, measure
from pinfactory.meta.experts import Question, per_sample
from pinfactory.meta.source import Recipes, TaskSource
from pinfactory.meta.tasks import Tasks
from pinfactory.persistence import register, save_model

from ._adapted import AdaptedImages
from ._blueprint import DIVIDED_SHARE, Blueprint
from ._learning import SpecialistLearner
from ._specialists import SharedSpecialists


@register("ImageSpecialists")
class ImageSpecialists(Blueprint):
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
        β₁, the selector's resource; larger in the first half of training.
    beta_expert : float, default=100.0
        β₂, the experts' resource.
    balance : float, default=0.1
        Weight of a bonus on H(M), which keeps all experts in use.
    selection : {"free energy", "k-means"}, default="free energy"
        How tasks come to experts: by a selector that learns from the experts' free energy, or by
        fixed clusters of the bottleneck of an autoencoder.
    embedding : {"learned", "autoencoder"}, default="learned"
        What a selector that learns sees of the positives: convolutions that learn with it, or as
        in the paper the bottleneck of an autoencoder that was trained beforehand and stays as it
        is (images of 28 × 28 pixels).
    embedding_pool : {"max", "mean", "min"}, default="max"
        How it is pooled over the positives.
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
    information_ : CommitteeInformation
        Bits of selector and experts in training tasks.
    history_ : list
        What was seen of the training along the way.
    """

    hierarchy_: SharedSpecialists
    information_: CommitteeInformation
    input_shape_: tuple[int, ...]
    # Tasks have two classes.
    n_outputs_ = 2

    def __init__(
        self,
        n_experts: int = 16,
        *,
        inner_steps: int = 10,
        beta_selector: float = 50.0,
        beta_expert: float = 100.0,
        balance: float = 0.1,
        selection: str = "free energy",
        embedding: str = "learned",
        embedding_pool: Any = "max",
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
        self.embedding = embedding
        self.embedding_pool = embedding_pool
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

    def fit(self, tasks: Tasks, *, callbacks: Sequence[Callback] = ()) -> "ImageSpecialists":
        """Learn to learn the training tasks.

        Parameters
        ----------
        tasks : Tasks
            A distribution of tasks with two classes of images, such as
            `pinfactory.meta.tasks.Omniglot`.
        callbacks : sequence of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.

        Returns
        -------
        self
        """
        self._check_settings()
        seen = self._look_at(tasks)
        learner = SpecialistLearner()
        again = self.warm_start and hasattr(self, "hierarchy_")
        new_selector = not again and self.selection == "free energy"
        hierarchy = self.hierarchy_ if again else self._start(seen)
        like = _decide(hierarchy, Question(seen.support, seen.query.x))
        state = learner.init(
            hierarchy,
            Priors.running(pick(like, 0), self.momentum, self.momentum),
            self._resources(new_selector),
            learning_rate=self.learning_rate,
            decay_steps=self.max_iter,
            balance=self.balance,
            divided_steps=DIVIDED_SHARE * self.max_iter if new_selector else 0.0,
        )
        bar: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        trained = train(
            learner,
            Run.start(jax.random.key(self.random_state)[None], stack([state])),
            TaskSource(tasks),
            steps=self.max_iter,
            batches=Recipes(tasks, self.batch_size),
            chunk=100,
            callbacks=[*bar, *callbacks],
        )
        self.hierarchy_, self.history_ = pick(trained.run.state, 0).hierarchy, trained.history
        self.input_shape_ = tuple(seen.support.x.shape[2:])
        measured, overall = measure(self.hierarchy_, tasks, seed=self.random_state)
        self.information_ = CommitteeInformation.of(
            measured, Estimate(jnp.asarray(overall), jnp.asarray(0.0))
        )
        return self

    def adapt(
        self, X: Any, y: Any, *, inner_steps: int | None = None, routing: Routing = "mixture"
    ) -> AdaptedImages:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, height, width)
            Images of the support set, with ink 1 on ground 0.
        y : array-like of shape (n_samples,)
            Their labels, of two kinds; the larger one is the class to be recognised.
        inner_steps, routing
            As in `evaluate`.

        Returns
        -------
        AdaptedImages
            A fitted estimator with `predict`, `predict_proba` and `score`.
        """
        return AdaptedImages(self, inner_steps=inner_steps, routing=routing).fit(X, y)

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
        return evaluate(
            self._with_steps(inner_steps),
            tasks,
            check.integer("n_tasks", n_tasks, 2),
            split=split,
            routing=check.choice("routing", routing, ("mixture", "best")),
            seed=seed,
        )

    def information(
        self, tasks: Tasks, n_tasks: int = 1000, *, split: str = "test", seed: int = 0
    ) -> Information:
        """Return the bits of selector and experts in new tasks."""
        return measure(self._with_steps(None), tasks, n_tasks, split=split, seed=seed)[0]

    def responsibilities(self, X_support: Any, y_support: Any) -> Float[np.ndarray, " m"]:
        """Return p(m|support set)."""
        return self.adapt(X_support, y_support).responsibilities_

    def predict(
        self, X_support: Any, y_support: Any, X: Any, *, inner_steps: int | None = None
    ) -> np.ndarray:
        """Return the labels of samples of a new task, in which some labelled ones are known."""
        return self.adapt(X_support, y_support, inner_steps=inner_steps).predict(X)

    def _with_steps(self, steps: int | None) -> SharedSpecialists:
        check_is_fitted(self, "hierarchy_")
        if steps is None:
            return self.hierarchy_
        return self.hierarchy_.with_steps(check.integer("inner_steps", steps, 0))

    def save(self, path: Any) -> None:
        """Write the fitted learner to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self, "hierarchy_")
        save_model(self, path)

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        meta = {
            "params": self.get_params(deep=False),
            "side": self.input_shape_[-1],
            "information": dataclasses.asdict(self.information_),
        }
        return meta, self.hierarchy_

    @classmethod
    def _from_file(
        cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]
    ) -> "ImageSpecialists":
        model, side = cls(**meta["params"]), int(meta["side"])
        model.input_shape_ = (side, side)
        model.information_ = CommitteeInformation(**meta["information"])
        blank = np.zeros((2, side, side), np.float32)
        model.hierarchy_ = load(model._hierarchy(blank, model._selector(side)))
        return model


@eqx.filter_jit
def _decide(hierarchy: SharedSpecialists, questions: Question) -> Any:
    return per_sample(jax.vmap(hierarchy)(questions))
