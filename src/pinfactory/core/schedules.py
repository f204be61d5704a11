"""Numbers that change along training, such as a learning rate or a resource β."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

Shape = Literal["linear", "exponential", "cosine"]


class Schedule(eqx.Module):
    """A number that moves from `start` to `end` within `steps` steps and stays there.

    Optax has these shapes too, but decides some of its branches in Python, which rules out
    schedules whose ends differ between replicas of one compiled program.
    """

    start: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    end: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    steps: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    shape: Shape = eqx.field(static=True, default="linear")

    @classmethod
    def constant(cls, value: Float[Array, ""] | float) -> "Schedule":
        """Return the same number at every step."""
        return cls(jnp.asarray(value), jnp.asarray(value), jnp.asarray(1.0))

    @classmethod
    def cosine_decay(cls, value: Float[Array, ""] | float, steps: float | int) -> "Schedule":
        """Fall to zero along a half cosine."""
        return cls(jnp.asarray(value), jnp.asarray(0.0), jnp.asarray(float(steps)), "cosine")

    def __call__(self, step: Int[Array, ""]) -> Float[Array, ""]:
        """Return the number at a step."""
        done = jnp.clip(step / self.steps, 0.0, 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** done
        if self.shape == "cosine":
            done = 0.5 * (1.0 - jnp.cos(jnp.pi * done))
        return self.start + (self.end - self.start) * done
