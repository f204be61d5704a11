"""Gradient steps: clipped, with Adam, and with learning rates that compiled programs take."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
from jaxtyping import Array, PyTree

# Directions only: the learning rate is traced, so that it may differ within one program.
OPTIMISER = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(eps=1e-5))

Parts = tuple[Any, ...]
OptStates = tuple[optax.OptState, ...]
Rates = tuple[Array, ...]


def init_optimiser(part: PyTree) -> optax.OptState:
    """Return the optimiser's state before its first step."""
    arrays = eqx.filter(part, eqx.is_inexact_array)
    # All zeros, by NumPy: JAX would compile a program for every shape.
    return jax.tree.map(
        lambda leaf: jax.device_put(np.zeros(leaf.shape, leaf.dtype)),
        eqx.filter_eval_shape(OPTIMISER.init, arrays),
    )


def gradient_step(
    loss: Callable[[Parts], tuple[Array, Any]], parts: Parts, optimisers: OptStates, rates: Rates
) -> tuple[Parts, OptStates, Any]:
    """Take one step down the gradient of `loss(parts) -> (value, aux)`.

    Every part has an optimiser, and so a norm to clip, and a learning rate of its own.

    Returns
    -------
    parts, optimisers
        After the step.
    aux
        What the loss returned beside its value.
    """
    arrays, static = eqx.partition(parts, eqx.is_inexact_array)
    gradients, aux = jax.grad(lambda a: loss(eqx.combine(a, static)), has_aux=True)(arrays)
    updates = [
        OPTIMISER.update(gradient, optimiser)
        for gradient, optimiser in zip(gradients, optimisers, strict=True)
    ]
    arrays = tuple(
        jax.tree.map(lambda w, d, rate=rate: w - rate * d, part, direction)
        for part, (direction, _), rate in zip(arrays, updates, rates, strict=True)
    )
    return eqx.combine(arrays, static), tuple(optimiser for _, optimiser in updates), aux


def gradient_steps(
    loss: Callable[[Parts, Any], tuple[Array, Any]],
    parts: Parts,
    optimisers: OptStates,
    rates: Rates,
    batches: PyTree | None = None,
    n_steps: int | None = None,
) -> tuple[Parts, OptStates, Any]:
    """Take a step for each of the batches along the leading axis, or `n_steps` without any.

    `loss(parts, batch)` returns a value and what to report; reports are stacked.
    """
    arrays, static = eqx.partition(parts, eqx.is_inexact_array)

    def step(carry: tuple[Parts, OptStates], batch: Any) -> tuple[tuple[Parts, OptStates], Any]:
        arrays, optimisers = carry
        parts, optimisers, aux = gradient_step(
            lambda parts: loss(parts, batch), eqx.combine(arrays, static), optimisers, rates
        )
        return (eqx.filter(parts, eqx.is_inexact_array), optimisers), aux

    (arrays, optimisers), aux = jax.lax.scan(step, (arrays, optimisers), batches, length=n_steps)
    return eqx.combine(arrays, static), optimisers, aux
