"""Whole grids of prices solved at once, each point from several random starts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int

from pinfactory.core.compiling import even_batch

from ._ascent import Ascent, Problem, State, ascend, leap, measure

# exp(−600) is far enough above the smallest double for products and quotients of such weights.
_SAFE_EXPONENT = 600.0
# Grid points solved side by side hold about this many numbers. All of them wait for the slowest,
# so there are more than one only where a single point would not keep the processor busy.
_BATCH_NUMBERS = 2**12
# Part of the range of U below which a gain no longer decides between restarts.
_ROUGH = 1e-6
_TINY = 1e-300

Numbers = float | int | np.number | np.ndarray | Array | Sequence[Any]


@dataclass(frozen=True)
class Solution:
    """Posteriors, priors and what they cost; a grid of β leads every shape.

    Attributes
    ----------
    p_m_given_x, p_m, p_y_given_m
        Selector p(m|x), its prior p(m), and the experts' priors p(y|m).
    expected_utility, objective
        E[U], and E[U] − I(X;M)/β₁ − I(X;Y|M)/β₂ with information in nats.
    information_selector, information_experts, information_total
        I(X;M), I(X;Y|M) and I(X;Y), in bits.
    effective_experts
        2^H(M): how many experts are in use.
    n_iterations, converged
        Steps of the best restart, and whether its objective had stopped growing.
    utility, p_x, beta_selector, beta_expert
        The problem that was solved.
    """

    p_m_given_x: Float64[np.ndarray, "*grid x m"]
    p_m: Float64[np.ndarray, "*grid m"]
    p_y_given_m: Float64[np.ndarray, "*grid m y"]
    expected_utility: Float64[np.ndarray, "*grid"]
    objective: Float64[np.ndarray, "*grid"]
    information_selector: Float64[np.ndarray, "*grid"]
    information_experts: Float64[np.ndarray, "*grid"]
    information_total: Float64[np.ndarray, "*grid"]
    effective_experts: Float64[np.ndarray, "*grid"]
    n_iterations: Int[np.ndarray, "*grid"]
    converged: Bool[np.ndarray, "*grid"]
    utility: Float64[np.ndarray, "x y"]
    p_x: Float64[np.ndarray, " x"]
    beta_selector: Float64[np.ndarray, "*grid"]
    beta_expert: Float64[np.ndarray, "*grid"]

    def p_y_given_x_m(self) -> Float64[np.ndarray, "*grid x m y"]:
        """Experts' posteriors p(y|x,m) ∝ p(y|m) exp(β₂ U(x,y)), equation (3)."""
        with np.errstate(divide="ignore"):  # priors of useless answers may have faded to zero
            log_prior = np.log(self.p_y_given_m)[..., None, :, :]
        logits = log_prior + self.beta_expert[..., None, None, None] * self.utility[:, None, :]
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True)

    def p_y_given_x(self) -> Float64[np.ndarray, "*grid x y"]:
        """Answers of the whole system, p(y|x) = Σ_m p(m|x) p(y|x,m)."""
        return np.einsum("...xm,...xmy->...xy", self.p_m_given_x, self.p_y_given_x_m())


def _leap_on(problem: Problem, tolerance: Float[Array, ""], now: Ascent) -> Ascent:
    """Leap; an ascent goes on if that gains more than the tolerance."""
    state = leap(problem, now.state)
    growing = state.objective - now.state.objective > tolerance
    return Ascent(state, growing, now.n_iterations + 3)


@partial(jax.jit, static_argnames=("log_space", "batch_size"))
def _solve_grid(
    utility: Float[Array, "x y"],
    p_x: Float[Array, " x"],
    betas: Float[Array, "grid 2"],
    starts: Float[Array, "restarts m y"],
    tolerances: Float[Array, "2"],
    max_iterations: Int[Array, ""],
    *,
    log_space: bool,
    batch_size: int,
) -> dict[str, Array]:
    """Solve for every pair of β from every start; keep the best start of each pair."""

    def solve_point(beta: Float[Array, "2"]) -> dict[str, Array]:
        problem = Problem.build(utility, p_x, beta[0], beta[1], log_space=log_space)
        roughly, exactly = (partial(_leap_on, problem, tolerance) for tolerance in tolerances)
        # Restarts wait for the slowest of them, so only the best goes on to the end, alone.
        tried = jax.vmap(lambda y: ascend(roughly, State.start(y), max_iterations))(starts)
        best = jnp.argmax(tried.state.objective)
        state, _, n_iterations = jax.tree.map(lambda leaf: leaf[best], tried)
        final = ascend(exactly, state, max_iterations - n_iterations)
        return measure(problem, utility, final.state) | {
            "n_iterations": n_iterations + final.n_iterations,
            "converged": ~final.growing,
        }

    return jax.lax.map(solve_point, betas, batch_size=batch_size)


def starts(
    utility: np.ndarray, p_x: np.ndarray, n_experts: int, n_restarts: int, seed: int
) -> np.ndarray:
    """Draw priors log p(y|m): half noise, half the good answers to one random state per expert.

    Equal experts are a saddle of the objective; experts that each know a state are far from it.
    """
    rng = np.random.default_rng(seed)
    enough = np.count_nonzero(p_x) >= n_experts
    states = [
        rng.choice(len(p_x), size=n_experts, replace=not enough, p=p_x) for _ in range(n_restarts)
    ]
    loss = utility.max(axis=1, keepdims=True) - utility
    sharp = np.exp(-8.0 * loss / max(np.ptp(utility), _TINY))
    sharp /= sharp.sum(axis=1, keepdims=True)
    noise = rng.dirichlet(np.ones(utility.shape[1]), size=(n_restarts, n_experts))
    return np.log(0.5 * sharp[np.stack(states)] + 0.5 * noise)


def solve(
    utility: Numbers,
    n_experts: int,
    beta_selector: Numbers,
    beta_expert: Numbers,
    *,
    p_x: Numbers | None = None,
    n_restarts: int = 8,
    tolerance: float = 1e-12,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> Solution:
    """Solve the coupled equations (3) for a known table of utilities.

    Parameters
    ----------
    utility : array of shape (states, answers)
        The table U(x, y).
    n_experts : int
        Number of experts M.
    beta_selector, beta_expert : float or array
        β₁ and β₂, in nats per unit of utility; arrays are broadcast together and span a grid.
    p_x : array of shape (states,), optional
        Distribution of states; uniform if not given.
    n_restarts : int
        Random starts, of which the best is kept. One expert needs only one: its problem is concave.
    tolerance : float
        Stop when three steps raise the objective by no more than this part of the range of U.
    max_iterations : int
        Stop after about so many steps, with `converged` False.
    seed : int
        Seed of the random starts.

    Returns
    -------
    Solution
        The best solution found for every point of the grid, as float64 NumPy arrays.

    Notes
    -----
    If β₁ ≤ β₂ the problem is concave and every start finds the optimum; if not, restarts are a
    search without guarantee. A grid takes the slower path in log-space when its largest β₂ times
    the range of U in a state exceeds 600.

    Examples
    --------
    >>> import numpy as np
    >>> solution = solve(np.eye(4), n_experts=2, beta_selector=50.0, beta_expert=0.1)
    >>> round(float(solution.information_selector), 3)
    1.0
    """
    table = np.asarray(utility, dtype=np.float64)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(
            f"utility must be a table of states by answers, but got shape {table.shape}"
        )
    if not np.isfinite(table).all():
        raise ValueError("utility must be finite everywhere, but got NaN or infinite entries")
    at_least_one(n_experts=n_experts, n_restarts=n_restarts, max_iterations=max_iterations)
    if not tolerance >= 0:
        raise ValueError(f"tolerance must be non-negative, but got {tolerance}")
    betas = np.stack(
        np.broadcast_arrays(
            positive("beta_selector", beta_selector), positive("beta_expert", beta_expert)
        ),
        axis=-1,
    )
    weights = distribution(p_x, len(table))

    grid = betas.shape[:-1]
    n_restarts = n_restarts if n_experts > 1 else 1
    row_range = np.ptp(table, axis=1).max()
    log_space = bool(betas[..., 1].max() * row_range > _SAFE_EXPONENT)
    numbers = table.size + n_restarts * n_experts * sum(table.shape)
    first = starts(table, weights, n_experts, n_restarts, seed)
    tolerances = np.maximum([_ROUGH, 0.0], tolerance) * np.ptp(table)
    with jax.enable_x64(True):
        measured = _solve_grid(
            *jax.device_put((table, weights, betas.reshape(-1, 2), first, tolerances)),
            jnp.asarray(max_iterations),
            log_space=log_space,
            batch_size=even_batch(math.prod(grid), _BATCH_NUMBERS // numbers),
        )
    return Solution(
        **{name: np.asarray(v).reshape(grid + v.shape[1:]) for name, v in measured.items()},
        utility=table,
        p_x=weights,
        beta_selector=betas[..., 0],
        beta_expert=betas[..., 1],
    )


def at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name} must be at least 1, but got {number}")


def positive(name: str, value: Numbers) -> np.ndarray:
    array = np.asarray(value, dtype=np.float64)
    if array.size == 0:
        raise ValueError(f"{name} must be a number or a non-empty array, but got no values")
    wrong = array[~(np.isfinite(array) & (array > 0))]
    if wrong.size:
        raise ValueError(
            f"{name} must be positive and finite, but got {wrong.flat[0]}; "
            "a large number stands for the limit without a price"
        )
    return array


def distribution(p_x: Numbers | None, n_states: int) -> np.ndarray:
    if p_x is None:
        return np.full(n_states, 1.0 / n_states)
    array = np.asarray(p_x, dtype=np.float64)
    if array.shape != (n_states,):
        raise ValueError(f"p_x must have shape ({n_states},), but got {array.shape}")
    if not (array >= 0).all() or not np.isclose(array.sum(), 1.0, rtol=0, atol=1e-6):
        raise ValueError(
            f"p_x must be non-negative and sum to one, but got sum {array.sum()} "
            f"and smallest entry {array.min()}"
        )
    return array / array.sum()
