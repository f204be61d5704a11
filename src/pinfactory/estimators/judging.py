"""How committees are judged by held-out rows, and what they lose where one line is better."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from pinfactory.core.batches import share_rows
from pinfactory.core.compiling import compiled
from pinfactory.core.hierarchy import Hierarchy
from pinfactory.core.learning import Data, State, Utility

from .budgets import meet_budgets

# A hundredth of R² more than one line loses costs a nat for each row. So much more of the targets'
# variance a committee may leave unexplained; a standard error counts as a loss, too, because what
# is judged by few rows, or by heavy tails, is often worse than it seems.
PRICE_OF_ERROR, ERROR_ALLOWED = 100.0, 0.002


class Judge(NamedTuple):
    """How answers are judged; what compiled functions need of a problem, the same for every fit."""

    utility: Utility  # what an expert's answer is worth
    # How good the whole committee's answer is for each row of a validation set.
    score: Callable[[Hierarchy, Data], Float[Array, " n"]]
    # The squared error of the committee's answer for each row, where committees must not be worse
    # in it than one line; else None.
    error: Callable[[Hierarchy, Data], Float[Array, " n"]] | None = None


@compiled
def held_out_scores(
    judge: Judge,
    states: State,
    *,
    judged: Data,
    together: int | None,
    line: Float[Array, "... rows"] | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, " replicas"]:
    """Return the weighted mean score of every replica, or of so many at a time.

    Committees with budgets are judged as they are when their budgets are met. What the error
    exceeds that of one line by is a loss, `PRICE_OF_ERROR` times as large, and so is what is not
    used of budgets.
    """

    def one(
        state: State, data: Data, line: Float[Array, " rows"] | None
    ) -> tuple[Float[Array, ""], ...]:
        data, line = share_rows(mesh, (data, line))
        model, missing = _in_force(judge, state, data)

        def total(values: Float[Array, " rows"]) -> Float[Array, ""]:
            # Where a row weighs nothing its score may be anything.
            return jnp.where(data.weight > 0, data.weight * values, 0.0).sum()

        score = total(judge.score(model, data) - PRICE_OF_ERROR * missing)
        if judge.error is None or line is None:
            return score, data.weight.sum()
        loss = judge.error(model, data) - line
        powers = (data.weight * loss**k for k in range(3))
        return score, data.weight.sum(), total(loss), *map(total, powers)

    in_axes = (eqx.if_array(0), *(None if together is None else eqx.if_array(0),) * 2)
    sums = eqx.filter_vmap(one, in_axes=in_axes)(states, judged, line)
    if together is not None:
        sums = tuple(part.reshape(-1, together).sum(axis=1) for part in sums)
    score, weight, *losses = sums
    score = score / weight
    if losses:
        mean, *powers = (loss / weight for loss in losses)
        # Σ w² (loss − mean)² / Σ w, by sums that folds have each for itself.
        square = powers[2] - 2.0 * mean * powers[1] + mean**2 * powers[0]
        error = jnp.sqrt(jnp.maximum(square, 0.0) / weight)
        score = score - PRICE_OF_ERROR * jnp.maximum(mean + error - ERROR_ALLOWED, 0.0)
    return score if together is None else jnp.repeat(score, together)


@compiled
def scores_of_rows(
    judge: Judge, states: State, judged: Data, folded: bool
) -> Float[Array, "replicas rows"]:
    """Return the score of every row by which each replica is judged."""

    def one(state: State, data: Data) -> Float[Array, " rows"]:
        model, missing = _in_force(judge, state, data)
        return judge.score(model, data) - PRICE_OF_ERROR * missing

    in_axes = (eqx.if_array(0), 0 if folded else None)
    return eqx.filter_vmap(one, in_axes=in_axes)(states, judged)


def _in_force(judge: Judge, state: State, data: Data) -> tuple[Hierarchy, Float[Array, ""]]:
    """Return the committee that a state stands for, and how far it stays below its budgets."""
    state = state.averaged()
    if not state.constraints.has_budget:
        return state.model, jnp.zeros(())
    met = meet_budgets(state, data, judge.utility)
    return met.state.model, met.shortfall
