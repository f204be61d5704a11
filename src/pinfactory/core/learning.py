"""The on-line learning rule: one gradient step on J for selector and experts together."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
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
    average: Float[Array, " parameters"]
    learning_rate: Float[Array, ""]
    weight_decay: Float[Array, ""]

    def settled(self) -> "LearnerState":
        """Return the state with the running mean of its parameters in place of the last ones.

        Steps of a constant size keep parameters trembling around what they have learned. Their
        mean is closer to it (Polyak & Juditsky 1992).
        """
        _, shaped = ravel_pytree(_parameters(self.hierarchy))
        hierarchy = eqx.combine(shaped(self.average), self.hierarchy)
        return eqx.tree_at(lambda state: state.hierarchy, self, hierarchy)


class Info(NamedTuple):
    """What happened in a step; information in bits, one entry per stage."""

    objective: Float[Array, ""]
    utility: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    beta: tuple[Float[Array, ""], ...]


# Adam sees all parameters as one vector: a loop over one long array takes a fraction of the time of
# as many loops as there are arrays, each of which costs more to start than to compute.
_ADAM = optax.scale_by_adam()
# The running mean of the parameters is over the last tenth of all steps, up to a hundred of them.
_SHARE_AVERAGED, _SMALLEST_RATE = 10.0, 0.01


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
        parameters, _ = ravel_pytree(_parameters(hierarchy))
        return LearnerState(
            hierarchy,
            priors,
            resources,
            scale,
            _ADAM.init(parameters),
            parameters,
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
        _, shaped = ravel_pytree(_parameters(state.hierarchy))
        parameters = _joined(_parameters(state.hierarchy))
        direction, optimiser = _ADAM.update(_joined(gradient), state.optimiser)
        parameters -= state.learning_rate * (direction + state.weight_decay * parameters)
        rate = jnp.maximum(_SHARE_AVERAGED / (optimiser.count + _SHARE_AVERAGED), _SMALLEST_RATE)
        information = tuple(jnp.sum(weights * part) for part in parts.information)
        resources = tuple(
            resource.update(nats)
            for resource, nats in zip(state.resources, information, strict=True)
        )
        new = LearnerState(
            eqx.combine(shaped(parameters), state.hierarchy),
            priors,
            resources,
            scale,
            optimiser,
            state.average + rate * (parameters - state.average),
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


def _joined(tree: PyTree[Array]) -> Float[Array, " parameters"]:
    """Return all arrays as one vector, in the order of `ravel_pytree`.

    Its parts are written one after the other: a concatenation would ask of every number from which
    part it comes.
    """
    parts = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    ends = np.cumsum([len(part) for part in parts])
    joined = jnp.zeros(ends[-1], jnp.result_type(*parts))
    for end, part in zip(ends, parts, strict=True):
        joined = jax.lax.dynamic_update_slice(joined, part, (int(end) - len(part),))
    return joined


def _parameters(hierarchy: Hierarchy) -> PyTree[Array]:
    """Return what gradients change."""
    return eqx.filter(hierarchy, eqx.is_inexact_array)
