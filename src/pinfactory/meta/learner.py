"""Learning to learn: one gradient step on J, for selector and experts, from a batch of tasks."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key

from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.information import BITS_PER_NAT
from pinfactory.core.learning import Info, Utility
from pinfactory.core.objective import free_energy, objective
from pinfactory.core.priors import Priors
from pinfactory.core.resources import Resource, UtilityScale

from .experts import Question, per_sample
from .tasks import Episode

# What an expert learns besides gradients, such as the moments of its features.
Observe = Callable[[Hierarchy, Episode, Categorical], Hierarchy]


class MetaState(eqx.Module):
    """All that changes while a hierarchy learns to learn, and what a sweep may vary.

    Attributes
    ----------
    balance
        Weight of a bonus on H(M), which keeps all experts in use.
    decay
        The part of its way to zero, along a half cosine, that the learning rate falls in a step.
    """

    hierarchy: Hierarchy
    priors: Priors
    resources: tuple[Resource, ...]
    scale: UtilityScale
    optimiser: optax.OptState
    step: Array
    learning_rate: Float[Array, ""]
    decay: Float[Array, ""]
    balance: Float[Array, ""]


_ADAM = optax.scale_by_adam()


class MetaLearner(eqx.Module):
    """Gradient ascent on J, with the utility of the adapted experts on the query samples.

    Section 5.1. The selector sees the support set, experts adapt to it, and both are judged by the
    free energy on the query set.

    Utilities count in units of their own deviation. Errors of adapted experts shrink by orders of
    magnitude while they learn: with a fixed price the selector would settle on one expert while
    they are large, or see no difference between experts when they are small.

    Attributes
    ----------
    utility
        Expected utility of an answer for a target.
    sampled
        Whether only one expert per task, drawn from p(m|x), learns from it. The selector still
        learns from the free energy of all of them, which takes no gradients and keeps it from
        settling on whichever expert happened to be first.
    observe
        Called after every step.
    """

    utility: Utility = eqx.field(static=True)
    sampled: bool = eqx.field(static=True, default=False)
    observe: Observe | None = eqx.field(static=True, default=None)

    def init(
        self,
        hierarchy: Hierarchy,
        priors: Priors,
        resources: tuple[Resource, ...],
        *,
        learning_rate: float = 1e-3,
        decay_steps: float | None = None,
        balance: float = 0.0,
    ) -> MetaState:
        """Return the state before the first step; after `decay_steps` nothing is learned."""
        decay = 0.0 if decay_steps is None else 1.0 / decay_steps
        return MetaState(
            hierarchy,
            priors,
            resources,
            UtilityScale(),
            _ADAM.init(eqx.filter(hierarchy, eqx.is_inexact_array)),
            jnp.asarray(0),
            *map(jnp.asarray, (learning_rate, decay, balance)),
        )

    def step(self, key: Key[Array, ""], state: MetaState, batch: Episode) -> tuple[MetaState, Info]:
        """Learn from a batch of tasks."""
        betas = tuple(resource.beta for resource in state.resources)
        questions = Question(batch.support, batch.query.x)
        target = batch.query.y.reshape(-1, *batch.query.y.shape[2:])
        weights = jnp.full(len(target), 1.0 / len(target))

        @eqx.filter_value_and_grad(has_aux=True)
        def loss(hierarchy: Hierarchy) -> tuple[Array, Any]:
            decision = self._decide(hierarchy, questions)
            samples = per_sample(decision)
            priors = state.priors.update(samples, weights)
            utility = self._utility(samples.answers, target)
            scale = state.scale.update(utility, weights[:, None] * samples.responsibilities)
            parts = objective(samples, priors, scale(utility), betas)
            in_use = jnp.mean(decision.selections[0].probs, axis=0)
            value = jnp.mean(parts.value)
            value = value + state.balance * Categorical.from_probs(in_use).entropy()
            if self.sampled:
                chosen = decision.selections[0].sample(key)
                experts = self._of_chosen(
                    hierarchy, chosen, questions, target, priors, scale, betas[-1]
                )
                # Adds the gradient of the chosen experts and nothing to the value.
                value = value + experts - jax.lax.stop_gradient(experts)
            plain = jnp.mean(jnp.sum(samples.responsibilities * utility, axis=1))
            return -value, (parts, plain, priors, scale, decision.selections[0])

        (negative, (parts, utility, priors, scale, selection)), gradient = loss(state.hierarchy)
        direction, optimiser = _ADAM.update(gradient, state.optimiser)
        done = jnp.clip(state.step * state.decay, 0.0, 1.0)
        rate = state.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        hierarchy = eqx.apply_updates(state.hierarchy, jax.tree.map(lambda d: -rate * d, direction))
        if self.observe is not None:
            hierarchy = self.observe(hierarchy, batch, selection)
        information = tuple(jnp.mean(part) for part in parts.information)
        resources = tuple(
            resource.update(nats)
            for resource, nats in zip(state.resources, information, strict=True)
        )
        new = MetaState(
            hierarchy,
            priors,
            resources,
            scale,
            optimiser,
            state.step + 1,
            state.learning_rate,
            state.decay,
            state.balance,
        )
        bits = tuple(nats * BITS_PER_NAT for nats in information)
        return new, Info(-negative, utility, bits, betas)

    def _decide(self, hierarchy: Hierarchy, questions: Question) -> Decision:
        """Return what all experts answer; without gradients for them if one is to be sampled."""
        if self.sampled:
            frozen = jax.lax.stop_gradient(eqx.filter(hierarchy.experts, eqx.is_inexact_array))
            hierarchy = eqx.tree_at(
                lambda h: h.experts, hierarchy, eqx.combine(frozen, hierarchy.experts)
            )
        return jax.vmap(hierarchy)(questions)

    def _of_chosen(
        self,
        hierarchy: Hierarchy,
        chosen: Array,
        questions: Question,
        target: Array,
        priors: Priors,
        scale: UtilityScale,
        beta: Array,
    ) -> Float[Array, ""]:
        """Return the mean free energy of one expert for each task."""

        def one(m: Array, question: Question) -> Family:
            answer = hierarchy.expert(m)(question)
            assert isinstance(answer, Family)
            return answer

        answers = jax.vmap(one)(chosen, questions)
        n_queries = answers.batch_shape[1]
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), answers)
        prior = jax.tree.map(
            lambda leaf: jnp.repeat(leaf[chosen], n_queries, axis=0), priors.stages[-1].family
        )
        utility = scale(jax.vmap(self.utility)(flat, target))
        return jnp.mean(free_energy(utility, flat, prior, beta))

    def _utility(self, answers: Family, target: Array) -> Float[Array, "n m"]:
        """Return the utility of every expert's answer to every query sample."""
        return jax.vmap(jax.vmap(self.utility, in_axes=(0, None)))(answers, target)
