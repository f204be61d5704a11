"""The free energy of an expert, of a selector, and the objective J."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .families import Family
from .hierarchy import Decision
from .priors import Priors

Beta = Float[Array, ""] | float


class Objective(NamedTuple):
    """J and its parts for every input, in nats where they are information."""

    value: Float[Array, " n"]
    utility: Float[Array, " n"]
    information: tuple[Float[Array, " n"], ...]


def free_energy(
    utility: Float[Array, "..."], answers: Family, prior: Family, beta: Beta
) -> Float[Array, "..."]:
    """Return f(x, m) = E[U] − 1/β₂ KL(p(y|x,m) ‖ p(y|m)), the free energy of every expert.

    Section 3.1. `utility` holds E_{p(y|x,m)}[U] for every input and expert.
    """
    return utility - answers.kl(prior) / beta


def objective(
    decision: Decision, priors: Priors, utility: Float[Array, "n ..."], betas: Sequence[Beta]
) -> Objective:
    """Return J with the exact expectation over experts (equations 6 and 7).

    Parameters
    ----------
    decision
        Posteriors for n inputs.
    priors
        Priors of all stages.
    utility
        Expected utility of every expert for every input.
    betas
        One β for every stage, from the outermost selector to the experts.
    """
    costs = [
        jnp.sum(reach * posterior.kl(prior.family), axis=tuple(range(1, reach.ndim)))
        for posterior, prior, reach in zip(
            decision.stages, priors.stages, decision.reach, strict=True
        )
    ]
    responsibilities = decision.responsibilities
    expected = jnp.sum(responsibilities * utility, axis=tuple(range(1, utility.ndim)))
    paid = sum(cost / beta for cost, beta in zip(costs, betas, strict=True))
    return Objective(expected - paid, expected, tuple(costs))


def sampled_objective(
    key: Key[Array, ""],
    decision: Decision,
    priors: Priors,
    utility: Float[Array, "n ..."],
    betas: Sequence[Beta],
) -> Objective:
    """Return an unbiased estimate of J from one sampled expert per input, as the paper writes it.

    Its gradient is unbiased too: multiplying by exp(log p − stop_gradient(log p)), which is one,
    adds the score-function term ∇ log p(m|x) · J(x, m).
    """
    *selector_priors, expert_prior = (prior.family for prior in priors.stages)
    cost = decision.answers.kl(expert_prior)
    value, costs = utility - cost / betas[-1], [cost]
    levels = zip(decision.selections, selector_priors, betas[:-1], strict=True)
    for level, (selection, prior, beta) in reversed(list(enumerate(levels))):
        chosen = selection.sample(jax.random.fold_in(key, level))

        def pick(a: Array, chosen: Array = chosen) -> Array:
            return jnp.take_along_axis(a, chosen[..., None], axis=-1)[..., 0]

        log_prob = selection.log_prob(chosen)
        ratio = log_prob - prior.log_prob(chosen)
        value = (pick(value) - ratio / beta) * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))
        utility, costs = pick(utility), [ratio, *map(pick, costs)]
    return Objective(value, utility, tuple(costs))
