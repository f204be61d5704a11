"""The steps that climb the objective, best posteriors for the priors and then their marginals.

And how utility and information are measured at the end.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import entr, logsumexp, rel_entr
from jaxtyping import Array, Bool, Float, Int

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

    @classmethod
    def start(cls, log_p_y: Float[Array, "m y"]) -> "State":
        """Begin with equal p(m)."""
        m = len(log_p_y)
        return cls(jnp.full(m, -jnp.log(m)), log_p_y, jnp.asarray(-jnp.inf))


class Posterior(eqx.Module):
    """The selector p(m|x), the normaliser Z(x,m) of the experts, and the free energy of states."""

    log_z: Float[Array, "m x"]  # log Z(x,m) less β₂ times the best utility in x
    log_p_m: Float[Array, "m x"]
    free_energy: Float[Array, " x"]


def log_product(
    log_rows: Float[Array, "m k"], table: Float[Array, "k n"], log_space: bool
) -> Float[Array, "m n"]:
    """Logarithm of the product of exp(log_rows) with the table, or with its exponential."""
    if log_space:
        return jax.lax.map(lambda row: logsumexp(row[:, None] + table, axis=0), log_rows)
    scale = jnp.max(log_rows, axis=1, keepdims=True)
    return jnp.log(jnp.exp(log_rows - scale) @ table) + scale


def best_posterior(problem: Problem, state: State) -> Posterior:
    """Best posteriors for fixed priors, equation (3), and the free energy they reach."""
    log_z = log_product(state.log_p_y, problem.table.T, problem.log_space)
    log_joint = state.log_p_m[:, None] + problem.beta_selector / problem.beta_expert * log_z
    log_norm = logsumexp(log_joint, axis=0)
    free_energy = problem.best + log_norm / problem.beta_selector
    return Posterior(log_z, log_joint - log_norm, free_energy)


def step(problem: Problem, state: State) -> State:
    """Take one step of coordinate ascent: best posteriors (3), then their marginals as priors.

    Both halves maximise the same objective, in which the priors are free variables, so
    `objective` never decreases from step to step.
    """
    posterior = best_posterior(problem, state)
    objective = jnp.sum(jnp.exp(problem.log_p_x) * posterior.free_energy)
    log_p_x_m = posterior.log_p_m + problem.log_p_x
    log_p_m = logsumexp(log_p_x_m, axis=1)
    growth = log_product(log_p_x_m - posterior.log_z, problem.table, problem.log_space)
    return State(log_p_m, state.log_p_y + growth - log_p_m[:, None], objective)


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


class Ascent(NamedTuple):
    """Where an ascent is, whether it still gains, and how many steps were taken."""

    state: State
    growing: Bool[Array, ""]
    n_iterations: Int[Array, ""]


def ascend(
    advance: Callable[[Ascent], Ascent], start: State, max_iterations: Int[Array, ""]
) -> Ascent:
    """Advance until nothing is gained."""
    return jax.lax.while_loop(
        lambda now: now.growing & (now.n_iterations < max_iterations),
        advance,
        Ascent(start, jnp.asarray(True), jnp.asarray(0)),
    )


def measure(
    problem: Problem, utility: Float[Array, "x y"], state: State
) -> dict[str, Float[Array, "..."]]:
    """Posteriors of the final priors, and their utility and information in bits."""
    posterior, marginal = best_posterior(problem, state), step(problem, state)
    p_x, p_m_given_x = jnp.exp(problem.log_p_x), jnp.exp(posterior.log_p_m)
    p_x_m = p_x * p_m_given_x
    p_m, p_y = jnp.exp(marginal.log_p_m), jnp.exp(marginal.log_p_y)
    prior_y = jnp.exp(state.log_p_y)

    loss = problem.best[:, None] - utility
    weighted = problem.table + jnp.log(loss) if problem.log_space else problem.table * loss
    log_loss = log_product(state.log_p_y, weighted.T, problem.log_space) - posterior.log_z
    expected_utility = p_x @ problem.best - jnp.sum(p_x_m * jnp.exp(log_loss))

    divergence = -problem.beta_expert * jnp.exp(log_loss) - posterior.log_z
    # The divergence from a prior exceeds the information by how far the prior is from the marginal.
    excess = p_m @ jnp.sum(rel_entr(p_y, prior_y), axis=1)
    information_experts = jnp.maximum(jnp.sum(p_x_m * divergence) - excess, 0.0)
    information_selector = jnp.sum(p_x * rel_entr(p_m_given_x, p_m[:, None]))

    log_mixture = log_product(
        (posterior.log_p_m - posterior.log_z).T,
        state.log_p_y if problem.log_space else prior_y,
        problem.log_space,
    )
    p_y_given_x = jnp.exp(log_mixture - problem.beta_expert * loss)
    information_total = jnp.sum(p_x[:, None] * rel_entr(p_y_given_x, p_x @ p_y_given_x))
    return {
        "p_m_given_x": p_m_given_x.T,
        "p_m": jnp.exp(state.log_p_m),
        "p_y_given_m": prior_y,
        "expected_utility": expected_utility,
        "objective": expected_utility
        - information_selector / problem.beta_selector
        - information_experts / problem.beta_expert,
        "information_selector": information_selector / jnp.log(2.0),
        "information_experts": information_experts / jnp.log(2.0),
        "information_total": information_total / jnp.log(2.0),
        "effective_experts": jnp.exp(jnp.sum(entr(p_m))),
    }
