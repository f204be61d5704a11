"""Where β comes from (fixed, scheduled, a budget in bits), and the scale of utilities."""

from abc import abstractmethod
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

LOG_2 = 0.6931471805599453


class Resource(eqx.Module):
    """The resource parameter β of one stage, as it changes from step to step."""

    @property
    @abstractmethod
    def beta(self) -> Float[Array, ""]:
        """The current β."""

    @abstractmethod
    def update(self, information: Float[Array, ""]) -> "Resource":
        """Go on to the next step, given the information (nats) the stage just processed."""


class Fixed(Resource):
    """The same β for ever."""

    value: Float[Array, ""] = eqx.field(converter=jnp.asarray)

    @property
    def beta(self) -> Float[Array, ""]:
        return self.value

    def update(self, information: Float[Array, ""]) -> "Fixed":
        return self


class Scheduled(Resource):
    """β moves from `start` to `end` within `steps` steps and stays there (Section 7.2).

    Optax has these shapes too, but decides some of its branches in Python, which rules out
    schedules whose ends differ between replicas.
    """

    start: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    end: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    steps: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    shape: Literal["linear", "exponential", "cosine"] = eqx.field(static=True)
    step: Int[Array, ""] = eqx.field(converter=jnp.asarray, default=0)

    @property
    def beta(self) -> Float[Array, ""]:
        done = jnp.clip(self.step / self.steps, 0.0, 1.0)
        if self.shape == "exponential":
            return self.start * (self.end / self.start) ** done
        if self.shape == "cosine":
            done = 0.5 * (1.0 - jnp.cos(jnp.pi * done))
        return self.start + (self.end - self.start) * done

    def update(self, information: Float[Array, ""]) -> "Scheduled":
        return eqx.tree_at(lambda s: s.step, self, self.step + 1)


class Budget(Resource):
    """β is found so that the stage processes `bits` bits, or as many as it can use if fewer.

    Dual ascent on the constraint I ≤ budget, whose multiplier is 1/β, taken in log β so that one
    step size serves all scales: log β ← log β + rate · (budget − forecast). Section 7.2 names
    this way of choosing β and leaves it open.

    Parameters follow a new β only after many steps. Comparing the budget with the information of
    now would raise β far too high in the meantime, so it is compared with a forecast: the trend
    of the running mean of the information, drawn out by `horizon` steps.
    """

    bits: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    log_beta: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    rate: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.01)
    average: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    momentum: float = eqx.field(static=True, default=0.99)
    horizon: float = eqx.field(static=True, default=1000.0)
    lowest: float = eqx.field(static=True, default=1e-3)
    highest: float = eqx.field(static=True, default=1e4)

    @property
    def beta(self) -> Float[Array, ""]:
        return jnp.exp(self.log_beta)

    def update(self, information: Float[Array, ""]) -> "Budget":
        trend = (1.0 - self.momentum) * (information - self.average)
        forecast = information + self.horizon * trend
        log_beta = self.log_beta + self.rate * (self.bits * LOG_2 - forecast)
        log_beta = jnp.clip(log_beta, jnp.log(self.lowest), jnp.log(self.highest))
        return eqx.tree_at(
            lambda s: (s.log_beta, s.average), self, (log_beta, self.average + trend)
        )


class UtilityScale(eqx.Module):
    """A running mean and deviation of the utility, after Pop-Art (van Hasselt et al. 2016).

    Dividing utilities by their deviation makes a β mean the same whatever their unit.
    """

    mean: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    variance: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    mass: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    momentum: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.999)

    def update(self, utility: Float[Array, "..."], weights: Float[Array, "..."]) -> "UtilityScale":
        """Take in weighted utilities."""
        utility, weights = jax.lax.stop_gradient((utility, weights))
        kept = self.momentum * self.mass
        mass = kept + jnp.sum(weights)
        divisor = jnp.where(mass > 0, mass, 1.0)
        mean = self.mean + jnp.sum(weights * (utility - self.mean)) / divisor
        spread = jnp.sum(weights * (utility - mean) ** 2)
        variance = (kept * (self.variance + (self.mean - mean) ** 2) + spread) / divisor
        return type(self)(mean, variance, mass, self.momentum)

    def __call__(self, utility: Float[Array, "..."]) -> Float[Array, "..."]:
        """Return the utility in units of its deviation."""
        # The floor is relative, so that it scales with the utility as everything else does.
        deviation = jnp.maximum(jnp.sqrt(self.variance), 1e-6 * jnp.abs(self.mean))
        return utility / jnp.where(deviation > 0, deviation, 1.0)
