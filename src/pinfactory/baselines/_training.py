"""Gradient descent on a loss of a whole model, as a step for the library's training loop."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Key, PyTree

from pinfactory.meta.tasks import Episode

Loss = Callable[[Any, Any], Float[Array, ""]]

_ADAM = optax.scale_by_adam()


class DescentState(eqx.Module):
    """A model on its way, and what a sweep may vary."""

    model: PyTree
    optimiser: optax.OptState
    step: Array
    learning_rate: Float[Array, ""]
    decay_steps: Float[Array, ""]

    @classmethod
    def start(cls, model: PyTree, learning_rate: float, steps: int) -> "DescentState":
        """Return the state before the first step."""
        return cls(
            model,
            _ADAM.init(eqx.filter(model, eqx.is_inexact_array)),
            jnp.asarray(0),
            jnp.asarray(float(learning_rate)),
            jnp.asarray(float(steps)),
        )


class Descent(eqx.Module):
    """Adam on a loss of model and batch, with a rate that falls to zero along a half cosine."""

    loss: Loss = eqx.field(static=True)

    def step(
        self, key: Key[Array, ""], state: DescentState, batch: PyTree
    ) -> tuple[DescentState, Float[Array, ""]]:
        """Go one step down."""
        value, gradient = eqx.filter_value_and_grad(self.loss)(state.model, batch)
        direction, optimiser = _ADAM.update(gradient, state.optimiser)
        done = jnp.clip(state.step / state.decay_steps, 0.0, 1.0)
        rate = state.learning_rate * 0.5 * (1.0 + jnp.cos(jnp.pi * done))
        model = eqx.apply_updates(state.model, jax.tree.map(lambda d: -rate * d, direction))
        new = DescentState(model, optimiser, state.step + 1, state.learning_rate, state.decay_steps)
        return new, value


def episode_loss(model: Any, batch: Episode) -> Float[Array, ""]:
    """Return the mean cross-entropy of the queries of a batch of tasks."""
    logits = jax.vmap(model)(batch.support, batch.query.x)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.query.y)
    return jnp.mean(losses)
