"""What a solution holds, and how its utility and information are measured."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import entr, rel_entr
from jaxtyping import Array, Bool, Float, Float64, Int

from ._ascent import Problem, State, best_posterior, log_product, step


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
