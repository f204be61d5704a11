"""What meta-learning classifier and regressor share: training and evaluation."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.base import warm_identity
from pinfactory.callbacks import fingerprint
from pinfactory.core.compiling import bounded, with_library_settings
from pinfactory.core.constraints import Constraints, Schedule, UtilityScale
from pinfactory.core.hierarchy import Hierarchy, pick, stack
from pinfactory.core.information import Information
from pinfactory.core.learning import Learner, State, Utility, with_schedules
from pinfactory.core.training import Run
from pinfactory.persistence import check_scale

from .adaptation import StepwiseAdaptation
from .adapted import Adapted, check_finite
from .build import build_hierarchy
from .evaluation import Routing, TaskScores, evaluate, measure
from .experts import MetaExpert, TaskInput
from .growth import TaskGrowth
from .loss import TaskLoss
from .parameters import MetaSettings, TaskDescription
from .shared import SharedHierarchy
from .source import (
    UNCHANGED,
    Scale,
    ScaledTasks,
    TaskBatches,
    TaskSource,
    image_samples,
    moments,
    sample_tasks,
)
from .tasks import Episode, Samples, Tasks

Fitted = TypeVar("Fitted", bound=Adapted)

# Tasks whose selection is computed at once.
BLOCK = 250


class MetaSpecialist(MetaSettings, Generic[Fitted]):
    """A selector of whole tasks, and experts that adapt to them."""

    _adapted: type[Fitted]

    @abstractmethod
    def _utility(self) -> Utility:
        """Return the utility that the experts are trained for."""

    @abstractmethod
    def _count_outputs(self, samples: Samples) -> int:
        """Return how many outputs an expert's network needs, after checking the targets."""

    def adapt(
        self, X: Any, y: Any, *, inner_steps: int | None = None, routing: Routing = "mixture"
    ) -> Fitted:
        """Fit to one task.

        Parameters
        ----------
        X : array-like of shape (n_samples, …)
            Inputs of the support set.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets: numbers, or labels of any type and of as many classes as in the tasks
            learned from. Sorted, they are classes 0, 1, … of a task; of two classes of images the
            selector sees the larger.
        inner_steps, routing
            As in `evaluate`.

        Returns
        -------
        AdaptedRegressor or AdaptedClassifier
            A fitted estimator with `predict` and `score`, and for classes `predict_proba`.
        """
        estimator: Any = self._adapted(self, inner_steps=inner_steps, routing=routing)
        return estimator.fit(X, y)

    # ------------------------------------------------------------------------------- training

    def fit(
        self, tasks: Any, *, callbacks: Any = None, checkpoint: str | Path | None = None
    ) -> "MetaSpecialist":
        """Learn to learn tasks.

        Parameters
        ----------
        tasks : Tasks
            A distribution of tasks, such as `pinfactory.meta.tasks.Sinusoids`.
        callbacks : Callback or list of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.
        checkpoint : path, optional
            File that is written along the way; if it exists, training goes on from it.

        Returns
        -------
        self
        """
        with self._learning():
            seed = check.seed(self.random_state)
            goes_on = self.warm_start and hasattr(self, "state_")
            seen = sample_tasks(tasks, seed)
            description = self._describe(seen, goes_on)
            model = self.state_.model if goes_on else self._build(description, seed)
            learner, state = self._start(model, description, new=not goes_on)
            scaled, growth = ScaledTasks(tasks, self.scale_), self._growth()
            identity = {"tasks": fingerprint(*jax.tree.leaves(seen))} if checkpoint else None
            if identity and goes_on:
                identity |= warm_identity(model)
            trained = self._train(
                learner,
                Run.start(jax.random.key(seed)[None], stack([state])),
                TaskSource(scaled),
                callbacks=callbacks,
                checkpoint=checkpoint,
                identity=identity,
                steps=self.max_iter,
                between=growth and TaskGrowth(growth, self.max_iter, self._utility(), scaled),
                batches=TaskBatches(scaled, check.integer("batch_size", self.batch_size, 1)),
                # Images take long: callbacks and Ctrl-C should not have to wait for them.
                chunk=100 if description.is_image else 250,
            )
            self.state_, self.history_ = pick(trained.run.state, 0), trained.history
            self.n_iter_ = int(trained.run.step)
            self.information_ = measure(self.state_.model, scaled, seed=seed)
            self._warn_of_missed_budgets()
        return self

    def _describe(self, seen: Episode, goes_on: bool) -> TaskDescription:
        """Store shapes and units of the tasks; a warm start keeps those it had."""
        samples = Samples(*(part.reshape(-1, *part.shape[2:]) for part in seen.support))
        shape, n_outputs = tuple(samples.x.shape[1:]), self._count_outputs(samples)
        if goes_on and (shape, n_outputs) != (self.input_shape_, self.n_outputs_):
            raise ValueError(
                f"a warm start must have tasks with samples of shape {self.input_shape_} and "
                f"{self.n_outputs_} outputs, as before, but got {shape} and {n_outputs}."
            )
        if not goes_on:
            self.input_shape_, self.n_outputs_ = shape, n_outputs
            self.moments_ = moments(samples) if self.standardise else UNCHANGED
            x = np.asarray(self.scale_.inputs(samples.x))
            self.x_range_ = float(x.min()), float(x.max())
        description = self._description(self.scale_(seen.support))
        if description.is_image:
            image_samples(seen)
        return description

    def _description(self, support: Samples | None = None) -> TaskDescription:
        return TaskDescription(
            self.input_shape_,
            self.n_outputs_,
            self.x_range_,
            self._utility(),
            self._is_classification,
            support,
        )

    def _build(self, tasks: TaskDescription, seed: int) -> Hierarchy:
        """Return an untrained hierarchy."""
        model, growth = build_hierarchy(self, tasks, seed), self._growth()
        if growth is None:
            return model
        begins = np.arange(len(model.available)) < growth.n_initial_experts
        return eqx.tree_at(lambda h: h.available, model, jax.device_put(begins))

    def _start(
        self, model: Hierarchy, tasks: TaskDescription, *, new: bool
    ) -> tuple[Learner, State]:
        """Return the learner and its state before the first step."""
        max_iter = check.integer("max_iter", self.max_iter, 1)
        warmup_steps = self._warmup_fraction(tasks) * max_iter if new else 0.0
        expectation: Any = check.choice("expectation", self.expectation, ("exact", "sampled"))
        loss = TaskLoss(
            self._utility(),
            jnp.asarray(check.number("balance", self.balance, 0.0)),
            jnp.asarray(warmup_steps) if warmup_steps else None,
            expectation,
        )
        priors = self._priors(tasks.like(model))
        rate = check.number("learning_rate", self.learning_rate, 0.0)
        learner, scale = Learner(loss), UtilityScale() if self.standardise else None
        state = learner.init(
            model,
            Constraints(priors, self._warmed_resources(warmup_steps), scale),
            learning_rate=Schedule.cosine_decay(rate, max_iter),
        )
        return learner, state

    def _as_asked(self, found: Run, asked: Run) -> Run:
        return with_schedules(found, asked)

    def _untrained(self) -> State:
        x_mean, x_deviation, y_mean, y_deviation = self.moments_
        check_scale(x_mean, x_deviation)
        check_scale(y_mean, y_deviation)
        tasks = self._description()
        return self._start(self._build(tasks, 0), tasks, new=True)[1]

    # ----------------------------------------------------------------------------- evaluation

    @with_library_settings
    def evaluate(
        self,
        tasks: Tasks,
        n_tasks: int = 1000,
        *,
        split: str = "test",
        inner_steps: int | None = None,
        routing: Routing = "mixture",
        seed: int = 0,
    ) -> TaskScores:
        """Adapt to many new tasks and score the answers to their query samples.

        Parameters
        ----------
        tasks : Tasks
            A distribution of tasks.
        n_tasks : int, default=1000
            How many tasks.
        split : {"train", "validation", "test"}, default="test"
            Which of them.
        inner_steps : int, optional
            Gradient steps of the adaptation, if another number than in training; 0 shows what
            the choice of the expert alone gives.
        routing : {"mixture", "best"}, default="mixture"
            Who answers: all experts weighted by their responsibility for the task, or the most
            responsible one alone.
        seed : int, default=0
            Which tasks: the same for the same seed, so that learners are compared on the same.

        Returns
        -------
        TaskScores
            Mean, standard error and 95 % confidence interval of the accuracy or the mean squared
            error (in the data's own units, mean over outputs), and the score of every task.
        """
        return evaluate(
            self.hierarchy(inner_steps),
            ScaledTasks(tasks, self.scale_),
            check.integer("n_tasks", n_tasks, 2),
            split=split,
            routing=check.choice("routing", routing, ("mixture", "best")),
            seed=seed,
            unit=self.scale_.y_deviation,
        )

    @with_library_settings
    def information(
        self, tasks: Tasks, n_tasks: int = 1000, *, split: str = "test", seed: int = 0
    ) -> Information:
        """Return the bits of selector and experts in new tasks; arguments as in `evaluate`."""
        scaled = ScaledTasks(tasks, self.scale_)
        return measure(self.hierarchy(), scaled, n_tasks, split=split, seed=seed)

    @with_library_settings
    def responsibilities(self, X: Any, y: Any) -> np.ndarray:
        """Return p(m|support set), one number for each expert.

        Parameters
        ----------
        X : array-like of shape (n_samples, …) or (n_tasks, n_samples, …)
            Inputs of the support set of one task, or of many.
        y : array-like of shape (n_samples, …) or (n_tasks, n_samples, …)
            Their targets. In many tasks classes are numbers from 0 on.

        Returns
        -------
        ndarray of shape (n_experts,) or (n_tasks, n_experts)
        """
        check_is_fitted(self)
        if np.ndim(X) == len(self.input_shape_) + 1:
            return self.adapt(X, y).responsibilities_
        inputs, targets = np.asarray(X, np.float32), np.asarray(y)
        n_tasks, shape = np.shape(inputs)[:2], self.input_shape_
        if inputs.shape[2:] != shape or not inputs.size or targets.shape[:2] != n_tasks:
            raise ValueError(
                f"`X` must be samples of shape {shape} of one task or of many, with `y` for each, "
                f"but got arrays of shapes {inputs.shape} and {targets.shape}."
            )
        if not (np.isfinite(inputs).all() and np.isfinite(targets).all()):
            raise ValueError("`X` and `y` must be finite, but have NaN or infinity.")
        support = Samples(jnp.asarray(inputs), jnp.asarray(targets))
        responsibilities = np.asarray(_select(self.state_.model, self.scale_, support), float)
        check_finite(responsibilities)
        return responsibilities

    def hierarchy(self, inner_steps: int | None = None) -> Hierarchy:
        """Return selector and experts, if asked with another number of gradient steps."""
        check_is_fitted(self)
        model = self.state_.model
        if inner_steps is None:
            return model
        steps = check.integer("inner_steps", inner_steps, 0, check.MOST_STEPS)
        if isinstance(model, SharedHierarchy):
            return model.with_steps(steps)
        assert isinstance(model.experts, MetaExpert)
        rule = model.experts.adaptation
        if not isinstance(rule, StepwiseAdaptation):
            raise ValueError(
                "`inner_steps` must be None where experts do not adapt by gradient steps, but got "
                f"{inner_steps!r} with adaptation={self.adaptation!r}."
            )
        return eqx.tree_at(lambda h: h.experts.adaptation, model, rule.with_steps(steps))


@bounded
@eqx.filter_jit
def _select(hierarchy: Hierarchy, scale: Scale, support: Samples) -> Float[Array, "n m"]:
    def one(support: Samples) -> Float[Array, " m"]:
        support = scale(support)
        return hierarchy.select(TaskInput(support, support.x)).probs

    return jax.lax.map(one, support, batch_size=BLOCK)
