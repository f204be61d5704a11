"""The free energy of an expert, of a selector, and the objective J."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Key

from .constraints import Constraints, Priors
from .families import Family
from .hierarchy import Decision

Beta = Float[Array, ""] | float
Expectation = Literal["exact", "sampled"]


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

    Where only k experts were asked, the expectation is over these with q(m|x) ∝ p(m|x); the
    selector still pays KL(p(m|x) ‖ p(m)) over all.

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
    families = decision.at_chosen([prior.family for prior in priors.stages])
    costs = [
        jnp.sum(reach * posterior.kl(prior), axis=tuple(range(1, reach.ndim)))
        for posterior, prior, reach in zip(decision.stages, families, decision.reach, strict=True)
    ]
    responsibilities = decision.responsibilities
    expected = jnp.sum(responsibilities * utility, axis=tuple(range(1, utility.ndim)))
    paid = sum(cost / beta for cost, beta in zip(costs, betas, strict=True))
    return Objective(expected - paid, expected, tuple(costs))


def gain_of_hindsight(decision: Decision, utility: Float[Array, "n ..."]) -> Float[Array, " n"]:
    """Return log Σ p(m|x) exp U(m) − Σ p(m|x) U(m) for every input.

    This is KL(p(m|x) ‖ p(m|x,y)) with p(m|x,y) ∝ p(m|x) exp U(m), the experts that one would choose
    having seen the truth. With the log-likelihood as utility J plus this gain is the
    log-likelihood of the mixture minus the price of information.
    """
    axes = tuple(range(1, utility.ndim))
    expected = jnp.sum(decision.responsibilities * utility, axis=axes)
    return logsumexp(decision.log_responsibilities + utility, axis=axes) - expected


def sampled_objective(
    key: Key[Array, ""],
    decision: Decision,
    priors: Priors,
    utility: Float[Array, "n ..."],
    betas: Sequence[Beta],
    group: int = 1,
) -> Objective:
    """Return an unbiased estimate of J from one sampled expert per input, as the paper writes it.

    Its gradient is unbiased too: multiplying by exp(log p − stop_gradient(log p)), which is one,
    adds the score-function term ∇ log p(m|x) · J(x, m). So many inputs in a row as `group` says
    have one selection and share the expert that is sampled, such as the queries of a task.
    """
    *selector_priors, expert_prior = (prior.family for prior in priors.stages)
    cost = decision.answers.kl(expert_prior)
    value, costs = utility - cost / betas[-1], [cost]
    levels = zip(decision.selections, selector_priors, betas[:-1], strict=True)
    for level, (selection, prior, beta) in reversed(list(enumerate(levels))):
        first = jax.tree.map(lambda leaf: leaf[::group], selection)
        chosen = jnp.repeat(first.sample(jax.random.fold_in(key, level)), group, axis=0)

        def pick(a: Array, chosen: Array = chosen) -> Array:
            return jnp.take_along_axis(a, chosen[..., None], axis=-1)[..., 0]

        log_prob = selection.log_prob(chosen)
        ratio = log_prob - prior.log_prob(chosen)
        value = (pick(value) - ratio / beta) * jnp.exp(log_prob - jax.lax.stop_gradient(log_prob))
        utility, costs = pick(utility), [ratio, *map(pick, costs)]
    return Objective(value, utility, tuple(costs))


def evaluate(
    key: Key[Array, ""],
    decision: Decision,
    utility: Float[Array, "n ..."],
    weights: Float[Array, " n"],
    constraints: Constraints,
    expectation: Expectation = "exact",
    group: int = 1,
) -> tuple[Objective, Constraints]:
    """Return J of n weighted inputs, and the constraints for the next step.

    Priors take in the posteriors first (equations 8 and 9), so that information is measured
    against the priors of now. Resources see the information that was processed. The utility in the
    result is as it was given; J counts it in units of its scale.

    Parameters
    ----------
    key
        Chooses the experts if `expectation` is "sampled".
    decision
        Posteriors for n inputs.
    utility
        Expected utility of every expert for every input.
    weights
        How much each input counts; the expectation of their sum is one.
    constraints
        Priors, resources and scale before this step.
    expectation
        Exact over experts, or from one sampled expert per input.
    group
        How many inputs in a row share a sampled expert.
    """
    priors, scale, unit = constraints.priors.update(decision, weights), constraints.scale, None
    if scale is not None:
        share = weights.reshape(-1, *(1,) * (utility.ndim - 1)) * decision.responsibilities
        scale = scale.update(utility, share)
        unit = scale(jnp.ones(()))
        utility = unit * utility
    if expectation == "sampled":
        parts = sampled_objective(key, decision, priors, utility, constraints.betas, group)
    else:
        parts = objective(decision, priors, utility, constraints.betas)
    if unit is not None:
        parts = parts._replace(utility=parts.utility / unit)
    resources = tuple(
        resource.update(jnp.sum(weights * nats))
        for resource, nats in zip(constraints.resources, parts.information, strict=True)
    )
    return parts, Constraints(priors, resources, scale)
