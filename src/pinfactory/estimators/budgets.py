"""Budgets in bits that are met: both stages of a trained committee at just the right β.

Training finds β by dual ascent, and is stopped where held-out rows say so, which is where a budget
is only nearly met. What is left is a change of β alone, and a change of β is a temperature: the
best selector for given experts is p(m|x) ∝ p(m) exp(β₁ f(x,m)), so that τβ₁ in place of β₁ takes
the log-ratio to the prior times τ. Experts are moved along the same path between their prior p(y|m)
and their answer.
"""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from sklearn.exceptions import ConvergenceWarning

from pinfactory import networks
from pinfactory.core.constraints import (
    LEAST_BITS,
    LOG_2,
    TOLERANCE,
    Budget,
    Fixed,
    Resource,
    is_met,
)
from pinfactory.core.families import Categorical, Gaussian
from pinfactory.core.gaussian_experts import ConstantNoiseExpert
from pinfactory.core.growth import last_layer, temper_outputs
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.information import Information, measure
from pinfactory.core.learning import Data, State, Utility, expected_utilities

# Log-temperatures between which a budget is looked for, and how often the interval is halved.
COLDEST, HOTTEST, HALVINGS = -7.0, 5.0, 24
# So much of what a stage can process at most is not worth a selector as hard as it takes.
NEARLY_ALL = 0.99
# Temperatures above one that are compared by utility.
TRIED = 16

Temperature = Float[Array, ""]


class Met(NamedTuple):
    """A state at its budgets, and how far it stays below them.

    `shortfall` is by how many nats the selector does, plus one if the experts do. How far experts
    do does not count: bits that nobody has a use for must not decide what is kept.
    """

    state: State[Hierarchy]
    shortfall: Float[Array, ""]


def meet_budgets(state: State[Hierarchy], data: Data, utility: Utility) -> Met:
    """Return the state in which every stage with a budget processes just that on `data`.

    A selector processes less only where its hardest decisions are not as many bits. Experts
    process less where answers that are more sure of themselves would be worth less.
    """
    selector, expert = state.constraints.resources
    missing = jnp.zeros(())
    if isinstance(selector, Budget) and _has_temperature(state.model.selector):
        wanted = selector.bits * LOG_2
        change = _selector_path(state.model, data)
        log_t = _temperature(lambda t: LOG_2 * _measured(change(t), data).selector, wanted)
        state = _changed(state, change(log_t), 0, log_t)
        reached = LOG_2 * _measured(state.model, data).selector
        missing = jnp.maximum((1.0 - TOLERANCE) * wanted - reached, 0.0)
    experts: Any = state.model.experts
    if isinstance(expert, Budget) and _output_layers(experts.network):
        change = _expert_path(state.model, data)
        log_t = _temperature(
            lambda t: LOG_2 * _measured(change(t), data).experts, expert.bits * LOG_2
        )
        log_t = _while_it_pays(lambda t: _worth(change(t), data, utility), log_t)
        state = _changed(state, change(log_t), 1, log_t)
        # A selector whose bits cost little takes over what experts may process; where a candidate
        # or a step leaves it to them, that one is kept.
        reached = _measured(state.model, data).experts
        missing += reached < (1.0 - TOLERANCE) * expert.bits - LEAST_BITS
    return Met(state, missing)


def _has_temperature(selector: Any) -> bool:
    return hasattr(selector, "temper_outputs") or last_layer(selector) is not None


def _changed(
    state: State[Hierarchy], model: Hierarchy, stage: int, log_t: Temperature
) -> State[Hierarchy]:
    resource: Any = state.constraints.resources[stage]
    log_beta = jnp.log(jnp.clip(resource.beta * jnp.exp(log_t), resource.lowest, resource.highest))
    return eqx.tree_at(
        lambda s: (s.model, s.constraints.resources[stage].log_beta), state, (model, log_beta)
    )


# --------------------------------------------------------------------------- the right temperature


def _temperature(
    nats: Callable[[Temperature], Float[Array, ""]], wanted: Float[Array, ""]
) -> Temperature:
    """Return the log-temperature of a stage that processes what is wanted, or nearly all it can."""
    low, high = jnp.asarray(COLDEST), jnp.asarray(HOTTEST)
    wanted = jnp.minimum(wanted, NEARLY_ALL * nats(high))

    def halve(_: Any, bounds: tuple[Temperature, Temperature]) -> tuple[Temperature, Temperature]:
        low, high = bounds
        middle = 0.5 * (low + high)
        enough = nats(middle) >= wanted
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    return jax.lax.fori_loop(0, HALVINGS, halve, (low, high))[0]


def _while_it_pays(
    worth: Callable[[Temperature], Float[Array, ""]], log_t: Temperature
) -> Temperature:
    """Return the log-temperature that is worth most between zero and this one, if it is above."""
    tried = jnp.linspace(0.0, jnp.maximum(log_t, 0.0), TRIED)
    best = tried[jnp.argmax(jax.lax.map(worth, tried))]
    return jnp.where(log_t > 0.0, best, log_t)


def _decide(model: Hierarchy, data: Data) -> tuple[Decision, Float[Array, " n"]]:
    """Return decisions and weights that sum to one; equal ones where no row has weight."""
    total = jnp.sum(data.weight)
    weights = jnp.where(
        total > 0, data.weight / jnp.where(total > 0, total, 1.0), 1.0 / len(data.x)
    )
    return jax.vmap(model)(data.x), weights


def _measured(model: Hierarchy, data: Data) -> Information:
    return measure(*_decide(model, data))


def _worth(model: Hierarchy, data: Data, utility: Utility) -> Float[Array, ""]:
    decision, weights = _decide(model, data)
    worth = decision.responsibilities * expected_utilities(utility, decision.answers, data.y)
    return jnp.sum(weights * jnp.sum(worth, axis=1))


# ---------------------------------------------------------------- committees at other temperatures


def _selector_path(model: Hierarchy, data: Data) -> Callable[[Temperature], Hierarchy]:
    decision, weights = _decide(model, data)
    share = weights @ decision.responsibilities

    def change(log_t: Temperature) -> Hierarchy:
        selector = temper_outputs(model.selector, share, jnp.exp(log_t))
        return eqx.tree_at(lambda h: h.selector, model, selector)

    return change


def _expert_path(model: Hierarchy, data: Data) -> Callable[[Temperature], Hierarchy]:
    """Return experts with answers ∝ p(y|m) (p(y|x,m) / p(y|m))^τ."""
    decision, weights = _decide(model, data)
    answers: Any = decision.answers
    reach = weights[:, None] * decision.responsibilities
    mass = reach.sum(axis=0)
    prior = answers.merge(
        jnp.where(mass > 0, reach / jnp.where(mass > 0, mass, 1.0), weights[:, None])
    )

    def change(log_t: Temperature) -> Hierarchy:
        t = jnp.exp(log_t)
        experts: Any = model.experts
        if isinstance(prior, Categorical):
            factor, shift = jnp.full_like(prior.log_probs, t), (1.0 - t) * prior.log_probs
        else:
            factor, shift, wider = _gaussian_path(answers, prior, t)
            if isinstance(experts, ConstantNoiseExpert):
                experts = eqx.tree_at(lambda e: e.log_scale, experts, experts.log_scale + wider)
            else:
                # The second half of a network's outputs are log-deviations; where answers are
                # drawn to the prior, so are these.
                kept = jnp.minimum(t, 1.0) * jnp.ones_like(factor)
                moved = jnp.where(t > 1.0, wider, (1.0 - kept) * prior.log_scale)
                factor = jnp.concatenate([factor, kept], axis=1)
                shift = jnp.concatenate([shift, moved], axis=1)
        network = _with_outputs(experts.network, factor, shift)
        return eqx.tree_at(lambda h: h.experts, model, _with_network(experts, network))

    return change


def _gaussian_path(
    answers: Gaussian, prior: Gaussian, t: Float[Array, ""]
) -> tuple[Array, Array, Array]:
    """Return factor and shift of means, and the change of log-deviations; precisions add up."""
    log_scale = answers.log_scale.mean(axis=0)
    own, common = t * jnp.exp(-2.0 * log_scale), (1.0 - t) * jnp.exp(-2.0 * prior.log_scale)
    precision = jnp.maximum(own + common, jnp.finfo(own.dtype).tiny)
    factor = own / precision
    return factor, (1.0 - factor) * prior.mean, -0.5 * jnp.log(precision) - log_scale


def _with_network(experts: Any, network: Any) -> Any:
    return eqx.tree_at(lambda e: e.network, experts, network)


def _output_layers(network: Any) -> list[Any]:
    """Return the parts of a network whose sum is its output; none where that is not known."""
    if isinstance(network, networks.Residual):
        return [network.linear, last_layer(network.mlp)]
    if isinstance(network, networks.Constant):
        return [network]
    layer = last_layer(network)
    return [] if layer is None or layer.bias is None else [layer]


def _with_outputs(network: Any, factor: Float[Array, "m k"], shift: Float[Array, "m k"]) -> Any:
    """Return stacked networks whose outputs are multiplied, and then shifted."""
    first, *others = layers = _output_layers(network)
    biases = [factor * first.bias + shift, *(factor * layer.bias for layer in others)]
    network = eqx.tree_at(lambda n: [p.bias for p in _output_layers(n)], network, biases)
    if isinstance(network, networks.Constant):
        return network
    weights = [factor[..., None] * layer.weight for layer in layers]
    return eqx.tree_at(lambda n: [p.weight for p in _output_layers(n)], network, weights)


# ------------------------------------------------------------------------------------- warnings


def warn_of_bits(stage: str, bits: float, reached: float) -> None:
    """Warn where a stage does not process what its budget is."""
    if is_met(bits, reached):
        return
    why = "its hardest decisions are worth no more"
    if stage == "expert":
        why = "answers that are more sure of themselves would be worth less"
    if reached > bits:
        why = "training ended before; raise max_iter, or use networks that end linearly"
    warnings.warn(
        f"`{stage}_bits`={bits:g} is not met: the stage processes {reached:.3g} bits on the "
        f"training samples, where {why}.",
        ConvergenceWarning,
        stacklevel=4,
    )


def warn_of_price(selector: Resource) -> None:
    """Say so where J of a log-likelihood lets no division of labour pay.

    Gibbs' inequality: Σ p(m|x) U(m) − KL(p(m|x) ‖ p(m)) ≤ log Σ p(m) exp U(m). With a
    log-likelihood U the right side is that of a committee that does not look at x.
    """
    if isinstance(selector, Fixed) and selector.value <= 1.0:
        warnings.warn(
            f"`beta_selector`={selector.value:g} makes a division of labour cost as much as it can "
            "bring: at 1 or below, J of a log-likelihood never exceeds the log-likelihood of a "
            "committee that does not look at its inputs, and training collapses. Raise "
            "beta_selector, let it rise (Scheduled), give the selector a budget (selector_bits), "
            "or use objective='likelihood'.",
            stacklevel=4,
        )
