"""How shared specialists learn: one gradient step on J, of answers before and after adaptation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from pinfactory.core.families import Categorical
from pinfactory.core.hierarchy import Decision
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.core.learning import Info
from pinfactory.core.objective import free_energy, objective
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Resource
from pinfactory.meta.experts import Question, per_sample
from pinfactory.meta.tasks import Episode

from ._specialists import SharedSpecialists, two_classes

# Until experts know something the bonus on H(M) is larger, up to this many times, for this share of
# all steps: an expert that nobody asks at first would never learn.
FIRST_BALANCE, BALANCED_SHARE = 3.0, 0.2


class SpecialistState(eqx.Module):
    """All that changes while specialists learn, and what a sweep may vary.

    Attributes
    ----------
    balance
        Weight of a bonus on H(M), which keeps all experts in use.
    """

    hierarchy: SharedSpecialists
    priors: Priors
    resources: tuple[Resource, ...]
    optimiser: optax.OptState
    step: Array
    learning_rate: Float[Array, ""]
    decay_steps: Float[Array, ""]
    balance: Float[Array, ""]


_ADAM = optax.scale_by_adam()


class SpecialistLearner(eqx.Module):
    """Gradient ascent on J, and on every expert's free energy after adaptation.

    Section 5.1. The selector sees the positives of the support set and is judged by what experts
    answer to the query set, before adaptation and after it. What an expert knows beforehand it
    learns from the tasks that are its own; how to adapt, all experts learn from all tasks, each by
    itself. From its own tasks alone an expert would learn it less well.
    """

    def init(
        self,
        hierarchy: SharedSpecialists,
        priors: Priors,
        resources: tuple[Resource, ...],
        *,
        learning_rate: float,
        decay_steps: int,
        balance: float,
    ) -> SpecialistState:
        """Return the state before the first step."""
        return SpecialistState(
            hierarchy,
            priors,
            resources,
            _ADAM.init(eqx.filter(hierarchy, eqx.is_inexact_array)),
            jnp.asarray(0),
            *map(jnp.asarray, (float(learning_rate), float(decay_steps), float(balance))),
        )

    def step(
        self, key: Key[Array, ""], state: SpecialistState, batch: Episode
    ) -> tuple[SpecialistState, Info]:
        """Learn from a batch of tasks."""
        betas = tuple(resource.beta for resource in state.resources)
        questions = Question(batch.support, batch.query.x)
        target = batch.query.y
        weights = jnp.full(target.size, 1.0 / target.size)
        done = jnp.clip(state.step / state.decay_steps, 0.0, 1.0)
        balance = state.balance * jnp.maximum(1.0, FIRST_BALANCE * (1.0 - done / BALANCED_SHARE))

        @eqx.filter_value_and_grad(has_aux=True)
        def loss(hierarchy: SharedSpecialists) -> tuple[Array, Any]:
            selection = jax.vmap(hierarchy.select)(questions)
            answers = jax.vmap(hierarchy.answers)(questions)
            decision = per_sample(Decision((selection,), two_classes(answers.after)))
            after = likelihood(answers.after, target)
            given, judged = jax.lax.stop_gradient((decision.answers, after))
            samples = Decision(decision.selections, given)
            priors = state.priors.update(samples, weights)
            parts = objective(samples, priors, likelihood(answers.before, target) + judged, betas)
            adapting = free_energy(after, decision.answers, priors.stages[-1].family, betas[-1])
            in_use = Categorical.from_probs(jnp.mean(selection.probs, axis=0))
            value = jnp.mean(parts.value) + jnp.mean(adapting) + balance * in_use.entropy()
            return -value, (parts, priors)

        (negative, (parts, priors)), gradient = loss(state.hierarchy)
        direction, optimiser = _ADAM.update(gradient, state.optimiser)
        rate = state.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        hierarchy = eqx.apply_updates(state.hierarchy, jax.tree.map(lambda d: -rate * d, direction))
        information = tuple(jnp.mean(part) for part in parts.information)
        resources = tuple(
            resource.update(nats)
            for resource, nats in zip(state.resources, information, strict=True)
        )
        new = SpecialistState(
            hierarchy,
            priors,
            resources,
            optimiser,
            state.step + 1,
            state.learning_rate,
            state.decay_steps,
            state.balance,
        )
        bits = tuple(nats * BITS_PER_NAT for nats in information)
        return new, Info(-negative, jnp.mean(parts.utility), bits, betas)


def likelihood(
    logits: Float[Array, "n m q"], target: Float[Array, "n q"] | Array
) -> Float[Array, "nq m"]:
    """Return log p(y|x, m) of every query sample by every expert."""
    sign = 2 * target[:, None] - 1
    return jnp.moveaxis(jax.nn.log_sigmoid(sign * logits), 1, 2).reshape(-1, logits.shape[1])
