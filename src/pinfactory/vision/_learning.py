"""How shared specialists learn: one gradient step on J, of answers before and after adaptation."""

from functools import partial
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

# How crisp the division is that experts learn first: log-probabilities in standard units are
# multiplied by it.
CRISP = 3.0


class SpecialistState(eqx.Module):
    """All that changes while specialists learn, and what a sweep may vary.

    Attributes
    ----------
    balance
        Weight of a bonus on H(M), which keeps all experts in use.
    divided_steps
        How many steps experts learn a division of tasks that is given.
    """

    hierarchy: SharedSpecialists
    priors: Priors
    resources: tuple[Resource, ...]
    optimiser: optax.OptState
    step: Array
    learning_rate: Float[Array, ""]
    decay_steps: Float[Array, ""]
    balance: Float[Array, ""]
    divided_steps: Float[Array, ""]


_ADAM = optax.scale_by_adam()


class SpecialistLearner(eqx.Module):
    """Gradient ascent on J, and on every expert's free energy after adaptation.

    Section 5.1. The selector sees the positives of the support set and is judged by what experts
    answer to the query set, before adaptation and after it. What an expert knows beforehand it
    learns from the tasks that are its own; how to adapt, all experts learn from all tasks, each by
    itself. From its own tasks alone an expert would learn it less well.

    At first experts know nothing, and a selector that is judged by them would forget what tells
    tasks apart: with p(m|x) the same for all tasks, experts learn the same, and nothing to choose
    from arises. So for the first steps tasks are divided by what the untrained selector happens to
    tell apart; experts learn their parts, and the selector the division.
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
        divided_steps: float = 0.0,
    ) -> SpecialistState:
        """Return the state before the first step."""
        return SpecialistState(
            hierarchy,
            priors,
            resources,
            _ADAM.init(eqx.filter(hierarchy, eqx.is_inexact_array)),
            jnp.asarray(0),
            *(
                jnp.asarray(float(number))
                for number in (learning_rate, decay_steps, balance, divided_steps)
            ),
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
        divided = state.step < state.divided_steps

        @eqx.filter_value_and_grad(has_aux=True)
        def loss(hierarchy: SharedSpecialists) -> tuple[Array, Any]:
            chosen = jax.vmap(hierarchy.select)(questions)
            division = jax.lax.stop_gradient(crisp(chosen))
            imitation = jnp.mean(jnp.sum(division.probs * chosen.log_probs, axis=-1))
            selection = jax.tree.map(partial(jnp.where, divided), division, chosen)
            answers = jax.vmap(hierarchy.answers)(questions)
            decision = per_sample(Decision((selection,), two_classes(answers.after)))
            after = likelihood(answers.after, target)
            given, judged = jax.lax.stop_gradient((decision.answers, after))
            samples = Decision(decision.selections, given)
            priors = state.priors.update(samples, weights)
            parts = objective(samples, priors, likelihood(answers.before, target) + judged, betas)
            adapting = free_energy(after, decision.answers, priors.stages[-1].family, betas[-1])
            in_use = Categorical.from_probs(jnp.mean(selection.probs, axis=0))
            value = jnp.mean(parts.value) + jnp.mean(adapting) + state.balance * in_use.entropy()
            return -value - jnp.where(divided, imitation, 0.0), (parts, priors)

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
            state.divided_steps,
        )
        bits = tuple(nats * BITS_PER_NAT for nats in information)
        return new, Info(-negative, jnp.mean(parts.utility), bits, betas)


def crisp(selection: Categorical) -> Categorical:
    """Return a clear division of a batch of tasks along the faint one of an untrained selector.

    In standard units over the batch no expert is liked more than the others, so that all have
    about as many tasks.
    """
    # Normalisation shifts all experts alike in a task; less their mean it has no say.
    faint = selection.log_probs - jnp.mean(selection.log_probs, axis=1, keepdims=True)
    standard = (faint - jnp.mean(faint, axis=0)) / (jnp.std(faint, axis=0) + 1e-6)
    return Categorical.from_logits(CRISP * standard)


def likelihood(
    logits: Float[Array, "n m q"], target: Float[Array, "n q"] | Array
) -> Float[Array, "nq m"]:
    """Return log p(y|x, m) of every query sample by every expert."""
    sign = 2 * target[:, None] - 1
    return jnp.moveaxis(jax.nn.log_sigmoid(sign * logits), 1, 2).reshape(-1, logits.shape[1])
