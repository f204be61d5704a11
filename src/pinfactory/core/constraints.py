"""Information constraints: priors to measure against, resources to pay with, units of utility.

Priors p(m) and p(y|m) are running means of the posteriors, or fixed. Resources say where β comes
from: fixed, scheduled, or a budget in bits.
"""

from abc import abstractmethod
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .families import Categorical, Family
from .hierarchy import Decision

LOG_2 = 0.6931471805599453
# Budgets in bits are met within this share of them, and fewer bits than these are none.
TOLERANCE, LEAST_BITS = 0.05, 1e-3
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


class Prior(eqx.Module):
    """The best common prior of all posteriors seen so far, older ones discounted by `momentum`.

    Section 3: p_{t+1} = λ p_t + (1 − λ) p, with each posterior weighted by how likely the decision
    comes to it, so that for experts p(y|m) = Σ_x p(x|m) p(y|x,m). `mass` is the discounted sum of
    those weights. Dividing by it makes the mean unbiased from the first batch on, and leaves the
    prior of an expert that was not used as it was. λ = 1 is the plain mean of everything.
    """

    family: Family
    mass: Float[Array, "..."]
    momentum: Float[Array, "..."]
    frozen: bool = eqx.field(static=True)

    @classmethod
    def running(cls, like: Family, momentum: Float[Array, ""] | float) -> "Prior":
        """Start a running mean for posteriors shaped as `like`; its values do not matter."""
        # By NumPy, because JAX would compile a program for every shape.
        mass = jax.device_put(np.zeros(like.batch_shape, jnp.result_type(float)))
        return cls(like, mass, jnp.asarray(momentum), frozen=False)

    @classmethod
    def fixed(cls, family: Family) -> "Prior":
        """Use `family` as the prior in all steps."""
        return cls(family, jnp.zeros(family.batch_shape), jnp.asarray(1.0), frozen=True)

    def update(
        self,
        posteriors: Family,
        weights: Float[Array, "n ..."],
        chosen: Int[Array, "n k"] | None = None,
    ) -> "Prior":
        """Update with n weighted posteriors (first axis), with gradients stopped.

        With `chosen` each input has k of them, of the experts with these numbers.
        """
        if self.frozen:
            return self
        posteriors, weights = jax.lax.stop_gradient((posteriors, weights))
        total = member_sums(weights, chosen, self.mass)
        mass = self.momentum * self.mass + total
        rate = jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1.0), 0.0)
        seen = total > 0
        if chosen is None:
            shares = jnp.where(seen, weights / jnp.where(seen, total, 1.0), 1.0 / len(weights))
            family = self.family.absorb(posteriors, shares, rate)
        else:
            shares = weights / jnp.where(seen, total, 1.0)[chosen]
            family = self.family.absorb_groups(posteriors, shares, chosen, rate)
        return type(self)(family, mass, self.momentum, frozen=False)


def member_sums(
    values: Float[Array, "n ..."],
    chosen: Int[Array, "n k"] | None,
    like: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Return sums over inputs for each member of a stage, shaped as `like`."""
    if chosen is None:
        return values.sum(axis=0)
    return jnp.zeros_like(like).at[chosen].add(values)


class Priors(eqx.Module):
    """One prior for every stage of a hierarchy, from the outermost selector to the experts."""

    stages: tuple[Prior, ...]

    @classmethod
    def running(
        cls,
        like: Decision,
        momentum_selector: Float[Array, ""] | float,
        momentum_expert: Float[Array, ""] | float,
    ) -> "Priors":
        """Start running means, with λ₂ for selectors and λ₁ for experts (equations 8 and 9)."""
        *selections, answers = like.outline
        selectors = [Prior.running(s, momentum_selector) for s in selections]
        return cls((*selectors, Prior.running(answers, momentum_expert)))

    @classmethod
    def uniform(cls, like: Decision) -> "Priors":
        """Uniform priors: the objective becomes the confidence penalty (equation 4)."""
        return cls(tuple(Prior.fixed(_uniform(stage)) for stage in like.outline))

    def update(self, decision: Decision, weights: Float[Array, " n"]) -> "Priors":
        """Update with the decisions for n inputs whose weights sum to one."""
        stages = zip(self.stages, decision.weighted_stages(weights), strict=True)
        return type(self)(tuple(prior.update(*stage) for prior, stage in stages))


class Resource(eqx.Module):
    """The resource parameter β of one stage, as it changes from step to step."""

    @property
    @abstractmethod
    def beta(self) -> Float[Array, ""]:
        """The current β."""

    @abstractmethod
    def update(self, information: Float[Array, ""]) -> "Resource":
        """Advance by one step, given the information (nats) that the stage just processed."""


class Fixed(Resource):
    """A constant β."""

    value: Float[Array, ""] = eqx.field(converter=jnp.asarray)

    @property
    def beta(self) -> Float[Array, ""]:
        return self.value

    def update(self, information: Float[Array, ""]) -> "Fixed":
        return self


class Scheduled(Resource):
    """β moves from `start` to `end` within `steps` steps and stays there (Section 7.2)."""

    start: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    end: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    steps: Float[Array, ""] = eqx.field(converter=jnp.asarray)
    shape: Shape = eqx.field(static=True)
    step: Int[Array, ""] = eqx.field(converter=jnp.asarray, default=0)

    @property
    def beta(self) -> Float[Array, ""]:
        return Schedule(self.start, self.end, self.steps, self.shape)(self.step)

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


def is_met(bits: float, reached: float) -> bool:
    """Return whether a stage meets its budget."""
    return abs(reached - bits) <= TOLERANCE * bits + LEAST_BITS


class UtilityScale(eqx.Module):
    """A running mean and deviation of the utility, after Pop-Art (van Hasselt et al. 2016).

    Dividing utilities by their deviation makes a β mean the same whatever their unit.
    """

    mean: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    variance: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    mass: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.0)
    momentum: Float[Array, ""] = eqx.field(converter=jnp.asarray, default=0.999)

    def update(self, utility: Float[Array, "..."], weights: Float[Array, "..."]) -> "UtilityScale":
        """Update with weighted utilities."""
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


class Constraints(eqx.Module):
    """Priors, resources and scale of utilities: what J needs besides the posteriors."""

    priors: Priors  #: p(m) and p(y|m)
    #: Where β of every stage comes from, from the outermost selector to the experts.
    resources: tuple[Resource, ...]
    scale: UtilityScale | None = None  #: the deviation of utilities, if they count in units of it

    @property
    def betas(self) -> tuple[Float[Array, ""], ...]:
        """β of every stage."""
        return tuple(resource.beta for resource in self.resources)

    @property
    def has_budget(self) -> bool:
        """Whether a stage has a budget in bits."""
        return any(isinstance(resource, Budget) for resource in self.resources)


def _uniform(family: Family) -> Family:
    if isinstance(family, Categorical):
        return Categorical.uniform(family.log_probs.shape)
    raise ValueError(
        f"A uniform prior must be over a finite set of answers, but got {type(family).__name__}; "
        "use a running or a fixed prior."
    )
