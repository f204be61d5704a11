"""Selector and experts in a decision process with known rewards and transitions."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int

from ._ascent import Ascent, Problem, State, ascend, best_posterior, extrapolate, measure, step
from ._solve import Numbers, at_least_one, distribution, positive, starts

# Newton's method for the values squares the error at every step.
_NEWTON_STEPS = 100
_NEWTON_PRECISION = 1e-13
# In place of a discount of one, for the share of time that is spent in every state.
_ALMOST_ONE = 1.0 - 1e-9


@dataclass(frozen=True)
class ProcessSolution:
    """Policies, priors and values of a decision process, and what they cost.

    Attributes
    ----------
    p_m_given_x, p_y_given_x_m
        Policies of the selector and of the experts.
    p_m, p_y_given_m
        Their priors.
    value, action_value
        V(x), the discounted free energy from a state on, costs of both stages included, and
        Q(x, y) = r(x, y) + γ E[V(x′)].
    occupancy
        The distribution of states over which priors and information are averages.
    objective, expected_return
        E[V] and the expected discounted reward, both over first states.
    information_selector, information_experts, information_total
        I(X;M), I(X;Y|M) and I(X;Y) of one step, in bits.
    effective_experts
        2^H(M).
    n_iterations, converged
        Steps of the best restart, and whether it had come to rest.
    """

    p_m_given_x: Float64[np.ndarray, "x m"]
    p_y_given_x_m: Float64[np.ndarray, "x m y"]
    p_m: Float64[np.ndarray, " m"]
    p_y_given_m: Float64[np.ndarray, "m y"]
    value: Float64[np.ndarray, " x"]
    action_value: Float64[np.ndarray, "x y"]
    occupancy: Float64[np.ndarray, " x"]
    objective: float
    expected_return: float
    information_selector: float
    information_experts: float
    information_total: float
    effective_experts: float
    n_iterations: int
    converged: bool


class _Process(NamedTuple):
    """The tables, prices and discount."""

    transition: Float[Array, "x y x2"]
    reward: Float[Array, "x y"]
    start: Float[Array, " x"]
    betas: Float[Array, "2"]
    gamma: Float[Array, ""]

    def problem(
        self, value: Float[Array, " x"], occupancy: Float[Array, " x"] | None = None
    ) -> Problem:
        """Return the table Q(x, y) that a value makes, as a problem of one step."""
        q = self.reward + self.gamma * self.transition @ value
        p_x = self.start if occupancy is None else occupancy
        return Problem.build(q, p_x, self.betas[0], self.betas[1], log_space=True)


class _Values(NamedTuple):
    """The values of the best policy for some priors, and the chain of states it makes."""

    value: Float[Array, " x"]
    chain: Float[Array, "x x2"]
    occupancy: Float[Array, " x"]


def _policy(problem: Problem, state: State, log_z: Float[Array, "m x"]) -> Float[Array, "x m y"]:
    """Return p(y|x,m) of equation (3)."""
    logits = state.log_p_y + problem.table[:, None]
    return jnp.exp(logits - log_z.T[..., None])


def _best_values(process: _Process, visited: bool, state: State) -> _Values:
    """Return the best values for fixed priors, and the occupancy of the policy that has them.

        V(x) = 1/β₁ log Σ_m p(m) [Σ_y p(y|m) exp β₂ Q(x, y)]^(β₁/β₂)

    by Newton's method, which is policy iteration: V ← V + (I − γ P)⁻¹ (T V − V) with the
    transitions P of the policy that is best for V.
    """
    identity = jnp.eye(len(process.start))

    def evaluate(value: Array) -> tuple[Array, Array]:
        problem = process.problem(value)
        posterior = best_posterior(problem, state)
        experts = _policy(problem, state, posterior.log_z)
        policy = jnp.einsum("mx,xmy->xy", jnp.exp(posterior.log_p_m), experts)
        chain = jnp.einsum("xy,xyz->xz", policy, process.transition)
        return posterior.free_energy - value, chain

    def newton(now: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        value, _, n = now
        residual, chain = evaluate(value)
        change = jnp.linalg.solve(identity - process.gamma * chain, residual)
        return value + change, jnp.max(jnp.abs(change)), n + 1

    def moving(now: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        value, change, n = now
        scale = 1.0 + jnp.max(jnp.abs(value))
        return (change > _NEWTON_PRECISION * scale) & (n < _NEWTON_STEPS)

    first = (jnp.zeros_like(process.start), jnp.asarray(jnp.inf), jnp.asarray(0))
    value = jax.lax.while_loop(moving, newton, first)[0]
    _, chain = evaluate(value)
    return _Values(value, chain, _occupancy(process, visited, chain))


def _occupancy(process: _Process, visited: bool, chain: Float[Array, "x x2"]) -> Float[Array, " x"]:
    """Return how often states are visited: discounted, or over episodes that start again."""
    discount = process.gamma
    if visited:
        chain = chain + (1.0 - jnp.sum(chain, axis=1))[:, None] * process.start
        discount = jnp.asarray(_ALMOST_ONE)
    counts = jnp.linalg.solve(jnp.eye(len(chain)) - discount * chain.T, process.start)
    counts = jnp.maximum(counts, 0.0)
    return counts / jnp.sum(counts)


def _advance(process: _Process, visited: bool, tolerance: Float[Array, ""], now: Ascent) -> Ascent:
    """Improve; an ascent goes on while that gains, or without an objective while priors change."""

    def improve(state: State) -> State:
        """Best policies for the priors, then their marginals as priors, and E[V] before that."""
        values = _best_values(process, visited, state)
        new = step(process.problem(values.value, values.occupancy), state)
        return State(new.log_p_m, new.log_p_y, process.start @ values.value)

    if visited:
        state = improve(now.state)
        both = zip(jax.tree.leaves(state)[:2], jax.tree.leaves(now.state)[:2], strict=True)
        change = jnp.stack([jnp.max(jnp.abs(jnp.exp(a) - jnp.exp(b))) for a, b in both])
        return Ascent(state, jnp.max(change) > tolerance, now.n_iterations + 1)
    state = extrapolate(improve, now.state)
    gain = state.objective - now.state.objective
    scale = 1.0 + jnp.abs(state.objective)
    return Ascent(state, gain > tolerance * scale, now.n_iterations + 3)


@partial(jax.jit, static_argnames="visited")
def _solve(
    process: _Process,
    first: Float[Array, "restarts m y"],
    tolerance: Float[Array, ""],
    max_iterations: Int[Array, ""],
    visited: bool,
) -> dict[str, Array]:
    advance = partial(_advance, process, visited, tolerance)
    tried = jax.vmap(lambda y: ascend(advance, State.start(y), max_iterations))(first)
    best = jnp.argmax(tried.state.objective)
    state, growing, n_iterations = jax.tree.map(lambda leaf: leaf[best], tried)
    values = _best_values(process, visited, state)
    problem = process.problem(values.value, values.occupancy)
    q = process.reward + process.gamma * process.transition @ values.value
    measured = measure(problem, q, state)
    experts = _policy(problem, state, best_posterior(problem, state).log_z)
    policy = jnp.einsum("xm,xmy->xy", measured["p_m_given_x"], experts)
    reward = jnp.sum(policy * process.reward, axis=1)
    returns = jnp.linalg.solve(jnp.eye(len(reward)) - process.gamma * values.chain, reward)
    return measured | {
        "p_y_given_x_m": experts,
        "value": values.value,
        "action_value": q,
        "occupancy": values.occupancy,
        "objective": process.start @ values.value,
        "expected_return": process.start @ returns,
        "n_iterations": n_iterations,
        "converged": ~growing,
    }


def solve_process(
    transition: Numbers,
    reward: Numbers,
    n_experts: int,
    beta_selector: float,
    beta_expert: float,
    *,
    gamma: float,
    start: Numbers | None = None,
    average: str = "discounted",
    n_restarts: int = 8,
    tolerance: float = 1e-12,
    max_iterations: int = 10_000,
    seed: int = 0,
) -> ProcessSolution:
    """Find the policies of selector and experts with the highest discounted free energy.

        max E Σ_t γ^t [ r(x, y) − 1/β₁ log p(m|x)/p(m) − 1/β₂ log p(y|x,m)/p(y|m) ]

    over both policies and both priors: equation (18) of the paper with a price on each stage. For
    fixed priors the best policies follow from soft value iteration,

        V(x) = 1/β₁ log Σ_m p(m) exp β₁ F(x, m),    F(x, m) = 1/β₂ log Σ_y p(y|m) exp β₂ Q(x, y),

    with Q(x, y) = r(x, y) + γ Σ_x′ P(x′|x, y) V(x′). For fixed policies the best priors are their
    marginals. The two are taken in turn.

    Parameters
    ----------
    transition : array of shape (states, actions, states)
        P(x′|x, y). Rows sum to one or less; what is missing is the probability that the episode
        ends.
    reward : array of shape (states, actions)
        r(x, y).
    n_experts : int
        Number of experts M.
    beta_selector, beta_expert : float
        β₁ and β₂, in nats per unit of reward.
    gamma : float
        Discount, from 0 up to, but not including, 1.
    start : array of shape (states,), optional
        Distribution of first states; uniform if not given.
    average : {"discounted", "visited"}
        The distribution of states that priors average the policies over. `"discounted"`: the
        occupancy d(x) ∝ Σ_t γ^t P(x_t = x). These are the priors that the objective above asks for,
        and it rises with every step. `"visited"`: the share of time spent in a state if episodes
        that end start again, without discount (the stationary distribution of that chain; if it
        is not unique, the one that first states lead to). That is what an agent averages over that
        counts all of its steps alike, as `pinfactory.rl.SpecialistAgent` does. The result is
        then a fixed point of both stages, not the maximum of one objective.
    n_restarts : int
        Random starts, of which the one with the best objective is kept; one for one expert.
    tolerance : float
        Stop when three steps raise the objective by no more than this part of it; with `"visited"`,
        when no prior probability changes by more.
    max_iterations : int
        Stop after about so many steps, with `converged` False.
    seed : int
        Seed of the random starts.

    Examples
    --------
    >>> import numpy as np
    >>> stay_or_go = np.stack([np.eye(2), 1 - np.eye(2)], axis=1)  # from 2 states, by 2 actions
    >>> reward = [[0.0, 0.0], [1.0, 1.0]]  # for being in the second
    >>> solution = solve_process(stay_or_go, reward, 1, 1.0, 100.0, gamma=0.9, start=[1.0, 0.0])
    >>> solution.p_y_given_x_m[:, 0].round(2)
    array([[0., 1.],
           [1., 0.]])
    """
    table, chances = np.asarray(reward, np.float64), np.asarray(transition, np.float64)
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"reward must be a finite table of states by actions, but got shape {table.shape}"
        )
    if chances.shape != (*table.shape, len(table)):
        raise ValueError(
            f"transition must have shape {(*table.shape, len(table))}, states by actions by next "
            f"states, but got {chances.shape}"
        )
    total = chances.sum(axis=-1)
    if not (chances >= 0).all() or not (total <= 1 + 1e-9).all():
        raise ValueError(
            "transition must hold probabilities that sum to one or less for every state and "
            f"action, but got a sum of {total.max()} and an entry of {chances.min()}"
        )
    if not 0 <= gamma < 1:
        raise ValueError(f"gamma must be at least 0 and below 1, but got {gamma}")
    if average not in ("discounted", "visited"):
        raise ValueError(f"average must be 'discounted' or 'visited', but got {average!r}")
    at_least_one(n_experts=n_experts, n_restarts=n_restarts)
    weights = distribution(start, len(table))
    betas = np.array(
        [positive("beta_selector", beta_selector), positive("beta_expert", beta_expert)]
    )
    n_restarts = n_restarts if n_experts > 1 else 1
    # Experts begin with good answers for the reward to come if all that follows is left to chance.
    mean = np.linalg.solve(np.eye(len(table)) - gamma * chances.mean(axis=1), table.mean(axis=1))
    first = starts(table + gamma * chances @ mean, weights, n_experts, n_restarts, seed)
    with jax.enable_x64(True):
        process = _Process(*map(jnp.asarray, (chances, table, weights, betas, float(gamma))))
        limits = map(jnp.asarray, (first, tolerance, max_iterations))
        found = _solve(process, *limits, average == "visited")
    found.pop("expected_utility")
    arrays = {name: np.asarray(value) for name, value in found.items()}
    plain: dict[str, Any] = {n: a if a.ndim else a.item() for n, a in arrays.items()}
    return ProcessSolution(**plain)
