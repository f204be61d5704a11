"""The steps that climb the objective: best posteriors for the priors, then their marginals."""

from collections.abc import Callable
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

_LONGEST_STRIDE = 1e3
_TINY = 1e-300


class Problem(eqx.Module):
    """A table of utilities with its prices, ready for `step`.

    The exponent β₂·(U(x, y) − max_y U(x, y)) is held as it is if `log_space`, and else
    exponentiated, which turns the sums over states and answers into matrix products.
    """

    table: Float[Array, "x y"]
    best: Float[Array, " x"]
    log_p_x: Float[Array, " x"]
    beta_selector: Float[Array, ""]
    beta_expert: Float[Array, ""]
    log_space: bool = eqx.field(static=True)

    @classmethod
    def build(
        cls,
        utility: Float[Array, "x y"],
        p_x: Float[Array, " x"],
        beta_selector: Float[Array, ""],
        beta_expert: Float[Array, ""],
        *,
        log_space: bool,
    ) -> "Problem":
        """Prepare the table; without `log_space` β₂·(range of U in a row) must be below 600."""
        best = jnp.max(utility, axis=1)
        exponent = beta_expert * (utility - best[:, None])
        table = exponent if log_space else jnp.exp(exponent)
        return cls(table, best, jnp.log(p_x), beta_selector, beta_expert, log_space)


class State(eqx.Module):
    """The priors log p(m) and log p(y|m), and the objective reached by the last posteriors."""

    log_p_m: Float[Array, " m"]
    log_p_y: Float[Array, "m y"]
    objective: Float[Array, ""]


class Posterior(eqx.Module):
    """The selector p(m|x), the normaliser Z(x,m) of the experts, and the objective."""

    log_z: Float[Array, "m x"]  # log Z(x,m) less β₂ times the best utility in x
    log_p_m: Float[Array, "m x"]
    objective: Float[Array, ""]


def log_product(
    log_rows: Float[Array, "m k"], table: Float[Array, "k n"], log_space: bool
) -> Float[Array, "m n"]:
    """Logarithm of the product of exp(log_rows) with the table, or with its exponential."""
    if log_space:
        return jax.lax.map(lambda row: logsumexp(row[:, None] + table, axis=0), log_rows)
    scale = jnp.max(log_rows, axis=1, keepdims=True)
    return jnp.log(jnp.exp(log_rows - scale) @ table) + scale


def best_posterior(problem: Problem, state: State) -> Posterior:
    """Best posteriors for fixed priors, equation (3), and the objective they reach."""
    log_z = log_product(state.log_p_y, problem.table.T, problem.log_space)
    log_joint = state.log_p_m[:, None] + problem.beta_selector / problem.beta_expert * log_z
    log_norm = logsumexp(log_joint, axis=0)
    free_energy = problem.best + log_norm / problem.beta_selector
    objective = jnp.sum(jnp.exp(problem.log_p_x) * free_energy)
    return Posterior(log_z, log_joint - log_norm, objective)


def step(problem: Problem, state: State) -> State:
    """Take one step of coordinate ascent: best posteriors (3), then their marginals as priors.

    Both halves maximise the same objective, in which the priors are free variables, so
    `objective` never decreases from step to step.
    """
    posterior = best_posterior(problem, state)
    log_p_x_m = posterior.log_p_m + problem.log_p_x
    log_p_m = logsumexp(log_p_x_m, axis=1)
    growth = log_product(log_p_x_m - posterior.log_z, problem.table, problem.log_space)
    return State(log_p_m, state.log_p_y + growth - log_p_m[:, None], posterior.objective)


def leap(problem: Problem, state: State) -> State:
    """Take three steps, the third from where the first two point; see `extrapolate`."""
    return extrapolate(partial(step, problem), state)


def extrapolate(step: Callable[[State], State], state: State) -> State:
    """Take three steps, the third from where the first two point, if that is no worse.

    Coordinate ascent crawls where priors slowly fade; this is its squared extrapolation
    (SQUAREM; Varadhan and Roland, 2008), in log-priors, with lengths in the Fisher metric.
    """
    first = step(state)
    second = step(first)
    p_m = jnp.exp(second.log_p_m)
    p_m_y = p_m[:, None] * jnp.exp(second.log_p_y)

    before, between, after = ((s.log_p_m, s.log_p_y) for s in (state, first, second))
    velocity = [b - a for a, b in zip(before, between, strict=True)]
    curvature = [c - b - v for b, c, v in zip(between, after, velocity, strict=True)]
    length, bend = (
        jnp.sum(p_m * d_m**2) + jnp.sum(p_m_y * d_y**2) for d_m, d_y in (velocity, curvature)
    )
    stride = jnp.clip(jnp.sqrt(length / jnp.maximum(bend, _TINY)), 1.0, _LONGEST_STRIDE)
    log_p_m, log_p_y = (
        jax.nn.log_softmax(a + 2.0 * stride * v + stride**2 * c)
        for a, v, c in zip(before, velocity, curvature, strict=True)
    )
    third = step(State(log_p_m, log_p_y, second.objective))
    better = third.objective >= second.objective
    return jax.tree.map(partial(jnp.where, better), third, second)
