"""The on-line learning rule: one gradient step on J for selector and experts together."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from .families import Family
from .hierarchy import Hierarchy
from .information import BITS_PER_NAT
from .objective import objective, sampled_objective
from .priors import Priors
from .resources import Resource, UtilityScale

# E_{p(y|x,m)}[U] of one answer for one target
Utility = Callable[[Family, PyTree[Array]], Float[Array, ""]]


class Data(eqx.Module):
    """Samples to learn from: inputs, targets, and how much each counts."""

    x: PyTree[Array]
    y: PyTree[Array]
    weight: Float[Array, " n"]


class LearnerState(eqx.Module):
    """All that changes while a hierarchy learns, and the hyper-parameters a sweep may vary."""

    hierarchy: Hierarchy
    priors: Priors
    resources: tuple[Resource, ...]
    scale: UtilityScale | None
    optimiser: optax.OptState
    learning_rate: Float[Array, ""]
    weight_decay: Float[Array, ""]


class Info(NamedTuple):
    """What happened in a step; information in bits, one entry per stage."""

    objective: Float[Array, ""]
    utility: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    beta: tuple[Float[Array, ""], ...]


_ADAM = optax.scale_by_adam()


class Learner(eqx.Module):
    """Gradient ascent on J by Adam (equations 6 to 11).

    Attributes
    ----------
    utility
        Expected utility of one expert's answer for one target.
    sampled
        Whether a step samples one expert per input, as the paper does, instead of taking the
        exact expectation over all of them.
    """

    utility: Utility = eqx.field(static=True)
    sampled: bool = eqx.field(static=True, default=False)

    def init(
        self,
        hierarchy: Hierarchy,
        priors: Priors,
        resources: tuple[Resource, ...],
        *,
        learning_rate: Float[Array, ""] | float = 3e-4,
        weight_decay: Float[Array, ""] | float = 0.0,
        scale: UtilityScale | None = None,
    ) -> LearnerState:
        """Return the state before the first step."""
        return LearnerState(
            hierarchy,
            priors,
            resources,
            scale,
            _ADAM.init(eqx.filter(hierarchy, eqx.is_inexact_array)),
            jnp.asarray(learning_rate),
            jnp.asarray(weight_decay),
        )

    def step(
        self, key: Key[Array, ""], state: LearnerState, batch: Data
    ) -> tuple[LearnerState, Info]:
        """Learn from one batch."""
        network_key, choice_key = jax.random.split(key)
        # A batch of rows that all weigh nothing teaches nothing.
        total = jnp.sum(batch.weight)
        weights = batch.weight / jnp.where(total > 0, total, 1.0)
        betas = tuple(resource.beta for resource in state.resources)

        @eqx.filter_value_and_grad(has_aux=True)
        def loss(hierarchy: Hierarchy) -> tuple[Array, tuple]:
            keys = jax.random.split(network_key, len(weights))
            decision = jax.vmap(lambda x, k: hierarchy(x, key=k))(batch.x, keys)
            utility = self._utility(decision.answers, batch.y)
            priors = state.priors.update(decision, weights)
            scale = state.scale
            if scale is not None:
                share = weights.reshape(-1, *(1,) * (utility.ndim - 1)) * decision.responsibilities
                scale = scale.update(utility, share)
                utility = scale(utility)
            parts = (
                sampled_objective(choice_key, decision, priors, utility, betas)
                if self.sampled
                else objective(decision, priors, utility, betas)
            )
            return -jnp.sum(weights * parts.value), (parts, priors, scale)

        (negative, (parts, priors, scale)), gradient = loss(state.hierarchy)
        parameters = eqx.filter(state.hierarchy, eqx.is_inexact_array)
        direction, optimiser = _ADAM.update(gradient, state.optimiser, parameters)
        change = jax.tree.map(
            lambda d, p: -state.learning_rate * (d + state.weight_decay * p), direction, parameters
        )
        information = tuple(jnp.sum(weights * part) for part in parts.information)
        resources = tuple(
            resource.update(nats)
            for resource, nats in zip(state.resources, information, strict=True)
        )
        new = LearnerState(
            eqx.apply_updates(state.hierarchy, change),
            priors,
            resources,
            scale,
            optimiser,
            state.learning_rate,
            state.weight_decay,
        )
        info = Info(
            -negative,
            jnp.sum(weights * parts.utility),
            tuple(nats * BITS_PER_NAT for nats in information),
            betas,
        )
        return new, info

    def _utility(self, answers: Family, target: PyTree[Array]) -> Float[Array, "n ..."]:
        """Return the utility of every expert's answer to every input."""
        one_input = self.utility
        for _ in answers.batch_shape[1:]:
            one_input = jax.vmap(one_input, in_axes=(0, None))
        return jax.vmap(one_input)(answers, target)
