"""Learning to learn: −J of a hierarchy on tasks, as a loss for `core.learning.Learner`."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from pinfactory.core.constraints import Constraints
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.learning import Info, State, Utility, expected_utilities
from pinfactory.core.objective import Expectation, evaluate, free_energy

from .experts import TaskInput, flatten_queries, per_query
from .shared import Answers, SharedHierarchy
from .tasks import Episode

# Log-probabilities in standard units are multiplied by this during the warm-up.
SHARPNESS = 3.0


class TaskLoss(eqx.Module):
    """−J with the utility of the adapted experts on the query samples (Section 5.1).

    The selector sees the support set, experts adapt to it, and both are trained on the free energy
    on the query set. Utilities count in units of their own deviation: errors of adapted experts
    shrink by orders of magnitude while they learn, and with a fixed price the selector would
    settle on one expert while they are large, or see no difference when they are small.

    Experts that share features learn their initial heads from answers before adaptation, in the
    tasks they are responsible for, and the adaptation from answers after it, in all tasks.

    During the warm-up tasks are divided by what the untrained selector happens to tell apart.
    Experts learn their parts, and the selector learns the division. Without it a selector that is
    trained by untrained experts may lose what tells tasks apart.
    """

    utility: Utility = eqx.field(static=True)  #: expected utility of an answer for a target
    #: Weight of a bonus on H(M), which keeps all experts in use.
    balance: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    #: How many steps the warm-up has; None for no warm-up.
    warmup_steps: Float[Array, ""] | None = None
    #: Whether J is the exact expectation over experts, or that of one sampled expert per task.
    expectation: Expectation = eqx.field(static=True, default="exact")

    def __call__(
        self, model: Hierarchy, state: State, batch: Episode, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Constraints, Info]]:
        inputs = TaskInput(batch.support, batch.query.x)
        imitation = jnp.zeros(())
        if isinstance(model, SharedHierarchy):
            selection = jax.vmap(model.select)(inputs)
            answers = jax.vmap(model.answers)(inputs)
            decision = Decision((selection,), answers.after)
        else:
            answers, decision = None, jax.vmap(model)(inputs)
        if self.warmup_steps is not None:
            warm = state.step < self.warmup_steps
            decision, imitation = _warmed_up(decision, warm)
        value, parts, constraints = self._objective(key, decision, answers, batch, state)
        in_use = jnp.mean(decision.selections[0].probs, axis=0)
        value = value + self.balance * Categorical.from_probs(in_use).entropy() + imitation
        weights = jnp.full(parts.value.shape, 1.0 / parts.value.size)
        info = Info.of(parts, weights, state.constraints)._replace(objective=value)
        return -value, (constraints, info)

    def _objective(
        self,
        key: Key[Array, ""],
        decision: Decision,
        answers: Answers | None,
        batch: Episode,
        state: State,
    ) -> tuple[Float[Array, ""], Any, Constraints]:
        """Return what is to be maximised, J with its parts, and the new constraints."""
        samples = per_query(decision)
        target = batch.query.y.reshape(-1, *batch.query.y.shape[2:])
        weights = jnp.full(len(target), 1.0 / len(target))
        utility = expected_utilities(self.utility, samples.answers, target)
        measured = partial(
            evaluate,
            key,
            weights=weights,
            constraints=state.constraints,
            expectation=self.expectation,
            group=batch.query.y.shape[1],
        )
        if answers is None:
            parts, constraints = measured(samples, utility)
            return jnp.mean(parts.value), parts, constraints
        adapted, fixed_utility = jax.lax.stop_gradient((samples.answers, utility))
        before = expected_utilities(self.utility, flatten_queries(answers.before), target)
        fixed = Decision(samples.selections, adapted)
        parts, constraints = measured(fixed, before + fixed_utility)
        *_, prior = constraints.priors.stages
        scaled = utility if constraints.scale is None else constraints.scale(utility)
        adapting = free_energy(scaled, samples.answers, prior.family, state.constraints.betas[-1])
        return jnp.mean(parts.value) + jnp.mean(adapting), parts, constraints


def task_utilities(utility: Utility, model: Hierarchy, batch: Episode) -> Float[Array, "n m"]:
    """Return the mean utility of every expert's answers to the queries of each task.

    Of experts that share features it is the sum of those before and after adaptation.
    """
    inputs = TaskInput(batch.support, batch.query.x)
    families: tuple[Family, ...]
    if isinstance(model, SharedHierarchy):
        families = jax.vmap(model.answers)(inputs)
    else:
        families = (jax.vmap(model)(inputs).answers,)
    target = batch.query.y.reshape(-1, *batch.query.y.shape[2:])
    total = sum(expected_utilities(utility, flatten_queries(each), target) for each in families)
    return jnp.mean(jnp.reshape(total, (*batch.query.y.shape[:2], -1)), axis=1)


def sharpen(selection: Categorical) -> Categorical:
    """Return a clear division of a batch of tasks along the weak one of an untrained selector.

    Log-probabilities are standardised over the batch for every expert, so that all have about as
    many tasks.
    """
    # The normalisation of a task adds the same number for all experts: their mean removes it.
    centred = selection.log_probs - jnp.mean(selection.log_probs, axis=1, keepdims=True)
    standard = (centred - jnp.mean(centred, axis=0)) / (jnp.std(centred, axis=0) + 1e-6)
    return Categorical.from_logits(SHARPNESS * standard)


def _warmed_up(decision: Decision, warm: Bool[Array, ""]) -> tuple[Decision, Float[Array, ""]]:
    """Replace p(m|x) by a sharp division while `warm`, which the selector learns to imitate."""
    (selection,) = decision.selections
    division = jax.lax.stop_gradient(sharpen(selection))
    imitation = jnp.mean(jnp.sum(division.probs * selection.log_probs, axis=-1))
    used = jax.tree.map(partial(jnp.where, warm), division, selection)
    return Decision((used,), decision.answers), jnp.where(warm, imitation, 0.0)
