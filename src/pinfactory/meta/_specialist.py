"""What meta-learning classifier and regressor share: from tasks to a trained hierarchy and back."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from pinfactory import settings as check
from pinfactory.callbacks import ProgressBar
from pinfactory.core.hierarchy import Hierarchy, pick, stack
from pinfactory.core.information import Estimate
from pinfactory.core.training import Callback, Run, train
from pinfactory.estimators import CommitteeInformation
from pinfactory.persistence import save_model

from ._blueprint import Blueprint
from .adaptation import GradientSteps
from .evaluation import Evaluation, Routing, evaluate, measure
from .experts import MetaExpert, Question
from .learner import MetaState
from .looking import look_at
from .scaling import Scale, ScaledTasks
from .source import Recipes, TaskSource
from .tasks import Samples, Tasks


class MetaSpecialist(Blueprint):
    """A selector of whole tasks, and experts that adapt to them."""

    # Steps between two returns to Python, where callbacks run and Ctrl-C takes effect.
    CHUNK = 250

    state_: MetaState
    scale_: Scale

    @abstractmethod
    def _count_outputs(self, tasks: Tasks, samples: Samples) -> int:
        """Return how many outputs an expert's network needs."""

    @abstractmethod
    def adapt(self, X: Any, y: Any) -> Any:
        """Fit to one task."""

    def fit(self, tasks: Any, *, callbacks: Sequence[Callback] = ()) -> "MetaSpecialist":
        """Learn to learn tasks.

        Parameters
        ----------
        tasks : Tasks
            A distribution of tasks, such as `pinfactory.meta.tasks.Sinusoids`.
        callbacks : sequence of Callback, optional
            Called after every chunk of steps, such as those of `pinfactory.callbacks`.

        Returns
        -------
        self
        """
        if not isinstance(tasks, Tasks):
            raise TypeError(
                "`tasks` must be a distribution of tasks with the methods `draw` and `build`, such "
                f"as ArrayTasks(X, y, ways=2, shots=5), but got {type(tasks).__name__}."
            )
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        seen = look_at(tasks, seed)
        samples = Samples(*(_joined(part) for part in seen.support))
        self.scale_ = Scale.of(samples)
        self.input_shape_ = tuple(samples.x.shape[1:])
        self.n_outputs_ = self._count_outputs(tasks, samples)
        x = self.scale_.inputs(samples.x)
        self.x_range_ = float(x.min()), float(x.max())
        scaled = ScaledTasks(tasks, self.scale_)
        learner = self._learner()
        run = Run.start(jnp.stack([jax.random.key(seed)]), stack([self._start(learner, seed)]))
        bar: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        trained = train(
            learner,
            run,
            TaskSource(scaled),
            steps=check.integer("max_iter", self.max_iter, 1),
            batches=Recipes(scaled, check.integer("batch_size", self.batch_size, 1)),
            chunk=self.CHUNK,
            callbacks=[*bar, *callbacks],
        )
        self.state_ = pick(trained.run.state, 0)
        self.history_ = trained.history
        self.n_iter_ = int(trained.run.step)
        information, overall = measure(self.state_.hierarchy, scaled, seed=seed)
        estimate = Estimate(jnp.asarray(overall), jnp.asarray(0.0))
        self.information_ = CommitteeInformation.of(information, estimate)
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
        Evaluation
            Mean, standard error and 95 % confidence interval of the accuracy or the mean squared
            error (in the data's own units), and the score of every task.
        """
        check_is_fitted(self)
        found = evaluate(
            self._with_steps(inner_steps),
            ScaledTasks(tasks, self.scale_),
            check.integer("n_tasks", n_tasks, 2),
            split=split,
            routing=check.choice("routing", routing, ("mixture", "best")),
            seed=seed,
        )
        return self._in_own_units(found)

    def responsibilities(self, X: Any, y: Any) -> np.ndarray:
        """Return p(m|support set), one number for each expert."""
        return self.adapt(X, y).responsibilities_

    def select_tasks(self, support: Samples) -> np.ndarray:
        """Return p(m|support set) of many tasks; samples have a leading axis of tasks."""
        check_is_fitted(self)
        return np.asarray(_select(self.state_.hierarchy, self.scale_, support), float)

    def save(self, path: Any) -> None:
        """Write the fitted meta-learner to one file; `pinfactory.load` reads it back."""
        check_is_fitted(self)
        save_model(self, path)

    def _in_own_units(self, found: Evaluation) -> Evaluation:
        return found

    def _with_steps(self, inner_steps: int | None) -> Hierarchy:
        """Return the hierarchy with another number of gradient steps."""
        hierarchy = self.state_.hierarchy
        if inner_steps is None:
            return hierarchy
        assert isinstance(hierarchy.experts, MetaExpert)
        rule = hierarchy.experts.adaptation
        if not isinstance(rule, GradientSteps):
            raise ValueError(
                "`inner_steps` must be None where experts do not adapt by gradient steps, but got "
                f"{inner_steps!r} with adaptation={self.adaptation!r}."
            )
        steps = check.integer("inner_steps", inner_steps, 0)
        return eqx.tree_at(lambda h: h.experts.adaptation, hierarchy, rule.with_steps(steps))

    # ---------------------------------------------------------------------------------- files

    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        params = self.get_params(deep=False)
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.stored(params[name])
        plain = ("input_shape_", "n_outputs_", "x_range_", "n_iter_")
        meta = {
            "params": params,
            "plain": {name: getattr(self, name) for name in plain},
            "scale": tuple(np.asarray(part) for part in jax.tree.leaves(self.scale_)),
            "information": dataclasses.asdict(self.information_),
        }
        return meta, self.state_

    @classmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> "MetaSpecialist":
        params = meta["params"]
        for name in ("beta_selector", "beta_expert"):
            params[name] = check.restored(params[name])
        model = cls(**params)
        for name, value in meta["plain"].items():
            setattr(model, name, value)
        model.scale_ = Scale(*map(jax.device_put, meta["scale"]))
        model.information_ = CommitteeInformation(**meta["information"])
        model.state_ = load(model._start(model._learner(), 0))
        return model


@eqx.filter_jit
def _select(hierarchy: Hierarchy, scale: Scale, support: Samples) -> Float[Array, "n m"]:
    def one(support: Samples) -> Float[Array, " m"]:
        support = scale(support)
        return hierarchy.select(Question(support, support.x)).probs

    return jax.vmap(one)(support)


def _joined(part: Any) -> Any:
    """Join the samples of all tasks."""
    return part.reshape(-1, *part.shape[2:])
