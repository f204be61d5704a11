"""How well a hierarchy learns new tasks, and what information that takes."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from pinfactory.core.batches import Source
from pinfactory.core.compiling import compiled_fully
from pinfactory.core.families import Categorical, Family, Gaussian
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.information import Information, Meter, estimate_information

from .experts import TaskInput, per_query
from .source import TaskSource
from .tasks import Tasks, draw_recipes, task_subjects

Routing = Literal["mixture", "best"]

# Tasks that are built and answered at once: bounds the memory of an evaluation.
BLOCK = 250
# Enough query samples to know the information of Gaussian answers to a few hundredths of a bit.
MONTE_CARLO_SAMPLES = 512


@dataclass(frozen=True)
class TaskScores:
    """Scores of many tasks.

    Attributes
    ----------
    scores
        One score for each task: the mean squared error or the accuracy on its query samples.
    groups
        A number for each task, the same for tasks about the same thing (such as one character);
        None where tasks are independent.
    """

    scores: Float[np.ndarray, " n"]
    groups: Int[np.ndarray, " n"] | None = None

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(np.mean(self.scores))

    @property
    def standard_error(self) -> float:
        """Standard error of the mean: √(G/(G − 1) Σ_g (Σ_{i∈g} sᵢ − s̄)²)/n with G groups.

        Tasks about the same thing are good or bad together: many of them tell little more than one.
        """
        groups = np.arange(len(self.scores)) if self.groups is None else self.groups
        _, group = np.unique(groups, return_inverse=True)
        sums = np.bincount(group, self.scores - np.mean(self.scores))
        if len(sums) < 2:
            return float("nan")
        factor = len(sums) / (len(sums) - 1)
        return float(np.sqrt(factor * np.sum(sums**2)) / len(self.scores))

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the mean, by the normal approximation."""
        return self.mean - 1.96 * self.standard_error, self.mean + 1.96 * self.standard_error

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {1.96 * self.standard_error:.2g} ({len(self.scores)} tasks)"


def answers(hierarchy: Hierarchy, x: TaskInput, routing: Routing) -> Family:
    """Return one answer for every query input of a task.

    By all experts, each adapted and weighted by its responsibility, or by the most responsible
    one alone, in which case no other is adapted.
    """
    if routing == "best":
        chosen = jnp.argmax(hierarchy.select(x).log_probs)
        answer = hierarchy.expert(chosen)(x)
        assert isinstance(answer, Family)
        return answer
    return mixture(hierarchy(x))


def mixture(decision: Decision) -> Family:
    """Return the best single answer of the family for the mixture of all experts."""
    (selection,) = decision.selections
    weights = selection.probs.reshape(-1, *(1,) * (len(decision.answers.batch_shape) - 1))
    return decision.answers.merge(jnp.broadcast_to(weights, decision.answers.batch_shape))


def task_score(
    answer: Family, target: Array, unit: Float[Array, " d"] | None = None
) -> Float[Array, ""]:
    """Return the accuracy of class labels, or the mean squared error of numbers.

    Errors of every output are multiplied by its `unit`. Answers that are not numbers score NaN.
    """
    if isinstance(answer, Categorical):
        right = jnp.mean(jnp.argmax(answer.log_probs, axis=-1) == target)
        return jnp.where(jnp.isnan(answer.log_probs).any(), jnp.nan, right)
    assert isinstance(answer, Gaussian)
    error = answer.mean - target
    return jnp.mean((error if unit is None else error * unit) ** 2)


def evaluate(
    hierarchy: Hierarchy,
    tasks: Tasks,
    n_tasks: int = 1000,
    *,
    split: str = "test",
    routing: Routing = "mixture",
    seed: int = 0,
    unit: Float[Array, " d"] | None = None,
) -> TaskScores:
    """Score a hierarchy on new tasks; the same seed gives the same tasks to every learner."""

    def score(source: Source, recipes: PyTree) -> Float[Array, " n"]:
        return _scores(hierarchy, source, recipes, routing, unit)

    return score_tasks(score, tasks, n_tasks, split=split, seed=seed)


def score_tasks(
    score: Callable[[Source, PyTree], Float[Array, " n"]],
    tasks: Tasks,
    n_tasks: int,
    *,
    split: str,
    seed: int,
    block: int = BLOCK,
) -> TaskScores:
    """Draw new tasks and score them, a block at a time; `score` gives one number for each task."""
    source, random, parts, groups = TaskSource(tasks), np.random.default_rng(seed), [], []
    for start in range(0, n_tasks, block):
        # Always full blocks: the last, shorter one is the same program.
        recipes = draw_recipes(tasks, random, block, split)
        parts.append(np.asarray(score(source, recipes), float)[: n_tasks - start])
        groups.append(task_subjects(tasks, recipes))
    found = np.concatenate(parts)
    if n_bad := np.count_nonzero(~np.isfinite(found)):
        raise ValueError(
            f"answers to {n_bad} of {n_tasks} tasks are not finite: `tasks` must have inputs like "
            "those of training, and adaptation steps that do not diverge."
        )
    known = [group for group in groups if group is not None]
    return TaskScores(found, np.concatenate(known)[:n_tasks] if known else None)


def measure(
    hierarchy: Hierarchy, tasks: Tasks, n_tasks: int = 1000, *, split: str = "train", seed: int = 0
) -> Information:
    """Return the information processed in many tasks; I(X;Y) is estimated where it must be."""
    source, random, meter = TaskSource(tasks), np.random.default_rng(seed), None
    for _ in range(0, n_tasks, BLOCK):
        recipes = draw_recipes(tasks, random, BLOCK, split)
        meter = _update(meter, hierarchy, source, recipes)
    assert meter is not None
    information = _report(meter)
    if meter.overall is None:
        overall = _overall(hierarchy, source, recipes)
        information = dataclasses.replace(information, overall=overall)
    return information.on_host()


def decide(hierarchy: Hierarchy, source: Source, recipes: PyTree[Array]) -> Decision:
    """Return the decisions for all query samples of a batch of tasks."""
    batch = source.batch(recipes)
    return per_query(jax.vmap(hierarchy)(TaskInput(batch.support, batch.query.x)))


@compiled_fully
def _scores(
    hierarchy: Hierarchy,
    source: Source,
    recipes: PyTree,
    routing: Routing,
    unit: Float[Array, " d"] | None,
) -> Float[Array, " n"]:
    batch = source.batch(recipes)
    inputs = TaskInput(batch.support, batch.query.x)
    found = jax.vmap(lambda x: answers(hierarchy, x, routing))(inputs)
    return jax.vmap(lambda answer, y: task_score(answer, y, unit))(found, batch.query.y)


@compiled_fully
def _update(meter: Meter | None, hierarchy: Hierarchy, source: Source, recipes: PyTree) -> Meter:
    decision = decide(hierarchy, source, recipes)
    return (Meter.start(decision) if meter is None else meter).update(decision)


_report = compiled_fully(Meter.report)


@compiled_fully
def _overall(hierarchy: Hierarchy, source: Source, recipes: PyTree) -> Float[Array, ""]:
    decision = decide(hierarchy, source, recipes)
    n_samples = decision.answers.batch_shape[0]
    every = max(1, n_samples // MONTE_CARLO_SAMPLES)
    some = jax.tree.map(lambda leaf: leaf[::every], decision)
    return estimate_information(jax.random.key(0), some)[1].value
