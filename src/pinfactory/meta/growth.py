"""How the experts of a meta-learner are split while it learns, with all that belongs to them."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.compiling import compiled_fully
from pinfactory.core.growth import last_layer, take_state
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.learning import State, Utility
from pinfactory.core.splitting import Growth, add_noise, plan_splits, split_by_cost, split_priors
from pinfactory.core.training import Run

from .experts import TaskInput
from .loss import task_utilities
from .source import TaskSource
from .tasks import Tasks, draw_recipes

# By how much the log odds in favour of the child grow with every standard deviation that a task
# costs its parent more.
SHARPNESS = 2.0
# Tasks that costs are estimated from: so many at once, so many times.
BATCH, N_BATCHES = 32, 8


@dataclass(frozen=True)
class TaskGrowth:
    """Splits experts between two chunks of a training."""

    growth: Growth  # when
    total: int  # steps of the training
    utility: Utility  # what an expert's answer is worth
    tasks: Tasks  # in the units that experts see

    def __call__(self, run: Run) -> Run:
        """Return the run with as many experts as there should be by now.

        What happens depends on the run alone, so that one from a checkpoint goes on as it would
        have done.
        """
        step = int(run.step)
        wanted = int(self.growth.n_wanted(jnp.asarray(step / self.total)))
        while wanted > np.asarray(run.state.model.available).sum():
            random = np.random.default_rng(step)
            recipes = jax.tree.map(
                lambda leaf: leaf.reshape(N_BATCHES, BATCH, *leaf.shape[1:]),
                draw_recipes(self.tasks, random, N_BATCHES * BATCH),
            )
            key = jax.random.fold_in(run.key[0], step)
            state = _split(
                self.utility,
                key,
                pick(run.state, 0),
                TaskSource(self.tasks),
                recipes,
                jnp.asarray(wanted),
            )
            run = eqx.tree_at(lambda r: r.state, run, stack([state]))
        return run


@compiled_fully
def _split(
    utility: Utility,
    key: Key[Array, ""],
    state: State,
    source: TaskSource,
    recipes: PyTree,
    wanted: Int[Array, ""],
) -> State:
    """Return the state with as many experts as wanted, at most twice as many, the busiest first.

    A child begins with the parameters of its parent and some noise, and takes over the tasks in
    which its parent is worse than on average.
    """
    model = state.model

    def measured(recipes: PyTree) -> tuple[Float[Array, "b h"], ...]:
        batch = source.batch(recipes)
        hidden = jax.vmap(model.selector.hidden)(batch.support)
        selection = jax.vmap(model.select)(TaskInput(batch.support, batch.query.x))
        return hidden, selection.probs, -task_utilities(utility, model, batch)

    found = jax.lax.map(measured, recipes)
    hidden, taken, cost = (leaf.reshape(-1, leaf.shape[-1]) for leaf in found)
    split = plan_splits(model.available, wanted, jnp.sum(taken, axis=0))
    copied = take_state(state, split.parent)
    layer: Any = last_layer(model.selector)
    layer = split_by_cost(layer, split, hidden, cost, taken, SHARPNESS)
    return eqx.tree_at(
        lambda s: (
            s.model.selector,
            s.model.experts,
            s.model.available,
            s.constraints.priors,
        ),
        copied,
        (
            eqx.tree_at(last_layer, model.selector, layer),
            add_noise(key, copied.model.experts, split.is_child),
            model.available | split.is_child,
            split_priors(state.constraints.priors, split.parent),
        ),
    )
