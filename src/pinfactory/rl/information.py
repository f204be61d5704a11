"""Information of selector and experts: what a step is charged, and what an agent processes."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pinfactory.core.compiling import compiled_fully
from pinfactory.core.constraints import Priors
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision
from pinfactory.core.information import Information, StageMeter, measure

from .policy import HierarchicalAction, Policy
from .state import Visited


def update_priors(
    priors: Priors, decision: Decision, action: HierarchicalAction, weight: Float[Array, " n"]
) -> Priors:
    """Update p(m) where the selector chose, and p(a|m) of the experts that acted."""
    (selection,) = decision.selections
    selector_prior, expert_prior = priors.stages
    taken = weight[:, None] * jax.nn.one_hot(action.expert, decision.answers.batch_shape[1])
    return Priors(
        (
            selector_prior.update(selection, weight * action.selected),
            expert_prior.update(decision.answers, taken),
        )
    )


def information_costs(
    selection: Categorical, answer: Family, action: HierarchicalAction, priors: Priors
) -> Float[Array, "n 2"]:
    """Return KL(p(m|x) ‖ p(m)) where the selector chose, and KL(p(a|x,m) ‖ p(a|m)), in nats."""
    selector_prior, expert_prior = (prior.family for prior in priors.stages)
    assert isinstance(selector_prior, Categorical)
    own = jax.tree.map(lambda leaf: leaf[action.expert], expert_prior)
    return jnp.stack([action.selected * selection.kl(selector_prior), answer.kl(own)], axis=1)


def log_ratios(
    selection: Categorical, answer: Family, action: HierarchicalAction, priors: Priors
) -> Float[Array, "n 2"]:
    """Return log p(m|x)/p(m) where the selector chose, and log p(a|x,m)/p(a|m), of the samples."""
    selector_prior, expert_prior = (prior.family for prior in priors.stages)
    own = jax.tree.map(lambda leaf: leaf[action.expert], expert_prior)
    chosen = selection.log_prob(action.expert) - selector_prior.log_prob(action.expert)
    acted = answer.log_prob(action.action) - own.log_prob(action.action)
    return jnp.stack([action.selected * chosen, acted], axis=1)


def measure_information(policy: Policy, visited: Visited, n_experts: int) -> Information:
    """Return the information that decisions on visited states process, without unused experts."""
    measured = (_measure if int(policy.hold) == 1 else _measure_held)(policy, visited).on_host()
    used = {name: getattr(measured, name)[:n_experts] for name in ("per_expert", "responsibility")}
    return dataclasses.replace(measured, **used)


@compiled_fully
def _measure(policy: Policy, visited: Visited) -> Information:
    """Measure a selector that chooses in every state, exactly over experts."""
    return measure(policy.decide(visited.observation))


@compiled_fully
def _measure_held(policy: Policy, visited: Visited) -> Information:
    """Measure a selector that chooses in some states only.

    I(S;M) is that of the states in which it chose, NaN if there is none; I(S;A|M) that of the
    expert that acted in a state, whether or not the selector would choose it there.
    """
    decision = policy.decide(visited.observation)
    (selection,) = decision.selections
    first = jax.tree.map(lambda leaf: leaf[0], (selection, decision.answers))
    selector, experts = map(StageMeter.start, first)
    selector = selector.update(selection, visited.selected.astype(float))
    acted = jax.nn.one_hot(visited.expert, decision.answers.batch_shape[1])
    experts = experts.update(decision.answers, acted)
    bits = jnp.where(experts.share > 0, experts.bits, 0.0)
    return Information(
        selectors=(jnp.where(jnp.any(visited.selected), selector.bits, jnp.nan),),
        experts=jnp.sum(experts.share * bits),
        overall=jnp.asarray(jnp.nan),
        per_expert=bits,
        responsibility=experts.share,
        effective_experts=jnp.exp(Categorical.from_probs(experts.share).entropy()),
    )
