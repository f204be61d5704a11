"""Priors p(m) and p(y|m): running means of the posteriors, or fixed."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from .families import Categorical, Family
from .hierarchy import Decision


class Prior(eqx.Module):
    """The best common prior of all posteriors seen so far, older ones discounted by `momentum`.

    Section 3: p_{t+1} = λ p_t + (1 − λ) p, with each posterior weighted by how likely the decision
    comes to it, so that for experts p(y|m) = Σ_x p(x|m) p(y|x,m). `mass` is the discounted sum of
    those weights. Dividing by it makes the mean unbiased from the first batch on, and leaves the
    prior of an expert that nobody asked as it was. λ = 1 is the plain mean of everything.
    """

    family: Family
    mass: Float[Array, "..."]
    momentum: Float[Array, "..."]
    frozen: bool = eqx.field(static=True)

    @classmethod
    def running(cls, like: Family, momentum: Float[Array, ""] | float) -> "Prior":
        """Start a running mean for posteriors shaped as `like`; its values do not matter."""
        return cls(like, jnp.zeros(like.batch_shape), jnp.asarray(momentum), frozen=False)

    @classmethod
    def fixed(cls, family: Family) -> "Prior":
        """Keep `family` as the prior for ever."""
        return cls(family, jnp.zeros(family.batch_shape), jnp.asarray(1.0), frozen=True)

    def update(self, posteriors: Family, weights: Float[Array, "n ..."]) -> "Prior":
        """Take in n weighted posteriors (first axis), with gradients stopped."""
        if self.frozen:
            return self
        posteriors, weights = jax.lax.stop_gradient((posteriors, weights))
        total = weights.sum(axis=0)
        mass = self.momentum * self.mass + total
        rate = jnp.where(mass > 0, total / jnp.where(mass > 0, mass, 1.0), 0.0)
        seen = total > 0
        shares = jnp.where(seen, weights / jnp.where(seen, total, 1.0), 1.0 / len(weights))
        family = self.family.absorb(posteriors, shares, rate)
        return type(self)(family, mass, self.momentum, frozen=False)


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
        selectors = [Prior.running(s, momentum_selector) for s in like.selections]
        return cls((*selectors, Prior.running(like.answers, momentum_expert)))

    @classmethod
    def uniform(cls, like: Decision) -> "Priors":
        """Uniform priors: the objective becomes the confidence penalty (equation 4)."""
        return cls(tuple(Prior.fixed(_uniform(stage)) for stage in like.stages))

    def update(self, decision: Decision, weights: Float[Array, " n"]) -> "Priors":
        """Take in the decisions for n inputs whose weights sum to one."""
        stages = zip(self.stages, decision.stages, decision.reach, strict=True)
        return type(self)(
            tuple(
                prior.update(posterior, weights.reshape(-1, *(1,) * (reach.ndim - 1)) * reach)
                for prior, posterior, reach in stages
            )
        )


def blank(shapes: PyTree) -> PyTree:
    """Return zeros of the given shapes, as posteriors for a prior to be shaped as."""
    return jax.tree.map(lambda s: jax.device_put(np.zeros(s.shape, s.dtype)), shapes)


def _uniform(family: Family) -> Family:
    if isinstance(family, Categorical):
        return Categorical.uniform(family.log_probs.shape)
    raise ValueError(
        f"A uniform prior must be over a finite set of answers, but got {type(family).__name__}; "
        "use a running or a fixed prior."
    )
