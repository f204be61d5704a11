"""Minibatches and gradient steps: Adam's, clipped or not, with learning rates that are traced."""

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from pinfactory.core.constraints import Resource
from pinfactory.core.hierarchy import zeros_like
from pinfactory.core.learning import Learner, State, scan

Parts = tuple[Any, ...]
OptStates = tuple[optax.OptState, ...]
Rates = tuple[Array, ...]


@cache  # one object for each norm, so that the same one compiles nothing anew
def clipped_adam(max_grad_norm: float | None) -> optax.GradientTransformation:
    """Return Adam on gradients of at most this norm; plain Adam if there is no limit.

    Directions only: the learning rate is traced, so that it may differ within one program.
    """
    if max_grad_norm is None:
        return optax.scale_by_adam()
    return optax.chain(optax.clip_by_global_norm(max_grad_norm), optax.scale_by_adam(eps=1e-5))


OPTIMISER = clipped_adam(1.0)


def init_optimiser(
    part: PyTree, optimiser: optax.GradientTransformation = OPTIMISER
) -> optax.OptState:
    """Return the optimiser's state before its first step."""
    arrays = eqx.filter(part, eqx.is_inexact_array)
    # All zeros, by NumPy: JAX would compile a program for every shape.
    return zeros_like(eqx.filter_eval_shape(optimiser.init, arrays))


def gradient_step(
    loss: Callable[[Parts], tuple[Array, Any]],
    parts: Parts,
    states: OptStates,
    rates: Rates,
    optimiser: optax.GradientTransformation = OPTIMISER,
) -> tuple[Parts, OptStates, Any]:
    """Take one step down the gradient of `loss(parts) -> (value, aux)`; return `aux` as well.

    Every part has a state of the optimiser, and so a norm to clip, and a learning rate of its own.
    """
    arrays, static = eqx.partition(parts, eqx.is_inexact_array)
    gradients, aux = jax.grad(lambda a: loss(eqx.combine(a, static)), has_aux=True)(arrays)
    updates = [
        optimiser.update(gradient, state) for gradient, state in zip(gradients, states, strict=True)
    ]
    arrays = tuple(
        jax.tree.map(lambda w, d, rate=rate: w - rate * d, part, direction)
        for part, (direction, _), rate in zip(arrays, updates, rates, strict=True)
    )
    return eqx.combine(arrays, static), tuple(state for _, state in updates), aux


def gradient_steps(
    loss: Callable[[Parts, Any], tuple[Array, Any]],
    parts: Parts,
    states: OptStates,
    rates: Rates,
    batches: PyTree,
    optimiser: optax.GradientTransformation = OPTIMISER,
) -> tuple[Parts, OptStates, Any]:
    """Take a step for each of the batches along the leading axis.

    `loss(parts, batch)` returns a value and what to report; reports are stacked.
    """

    def step(carry: tuple[Parts, OptStates], batch: Any) -> tuple[tuple[Parts, OptStates], Any]:
        parts, states, aux = gradient_step(
            lambda parts: loss(parts, batch), *carry, rates, optimiser
        )
        return (parts, states), aux

    (parts, states), aux = scan(step, (parts, states), batches)
    return parts, states, aux


def learn_batches(
    learner: Learner, key: Key[Array, ""], state: State, batches: PyTree, repeat: int | None = None
) -> tuple[State, Any]:
    """Take a step of a learner for each of the batches along the leading axis.

    With `repeat` there is one batch, and so many steps on it.
    """

    def step(state: State, batch: Any) -> tuple[State, Any]:
        return learner.step(key, state, batches if repeat else batch)

    return scan(step, state, None if repeat else batches, repeat)


def update_resource(resource: Resource, nats: Float[Array, " steps"]) -> Resource:
    """Return the resource after gradient steps in which so many nats were processed."""
    return scan(lambda resource, nats: (resource.update(nats), None), resource, nats)[0]


def random_minibatches(
    key: Key[Array, ""], n_epochs: int, n: int, batch_size: int
) -> Int[Array, "batches rows"]:
    """Return the rows of whole minibatches of 0 … n − 1, in a random order in every epoch.

    Random bits with the index in the lowest of them, sorted: ten times faster than `argsort`.
    """
    low = (1 << (n - 1).bit_length()) - 1
    bits = jax.random.bits(key, (n_epochs, n), jnp.uint32)
    mixed = jnp.sort((bits & ~jnp.uint32(low)) | jnp.arange(n, dtype=jnp.uint32), axis=-1)
    order = (mixed & jnp.uint32(low)).astype(jnp.int32)
    return order[:, : n // batch_size * batch_size].reshape(-1, batch_size)
