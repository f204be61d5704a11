"""How an expert adapts to a support set of a few samples.

A rule maps an expert and a support set to the expert for that task. It is differentiable, so that
experts learn to be adapted, and a module, so that it may have parameters of its own.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Key, PyTree

from pinfactory.core.hierarchy import Expert
from pinfactory.core.learning import Utility
from pinfactory.networks import numpy_generator, reserve

from .tasks import Samples

# In standard units a gradient longer than this is a sign of divergence.
LONGEST = 10.0


class Adaptation(eqx.Module):
    """A rule of adaptation."""

    @abstractmethod
    def __call__(self, expert: Expert, support: Samples) -> Expert:
        """Return the expert for the task that `support` is from."""


class Unchanged(Adaptation):
    """No adaptation: the choice of the expert is all that depends on the task."""

    def __call__(self, expert: Expert, support: Samples) -> Expert:
        return expert


class StepwiseAdaptation(Adaptation):
    """A rule with a number of `steps`, which may be another after training than during it."""

    def with_steps(self, steps: int) -> "StepwiseAdaptation":
        """Return the same rule with another number of steps."""
        rule: Any = self
        return dataclasses.replace(rule, steps=steps)


class GradientSteps(StepwiseAdaptation):
    """A few steps of gradient ascent on the utility of the support set.

    With fixed step sizes this is MAML (Finn et al. 2017), of the head alone ANIL (Raghu et al.
    2020), with learned step sizes for every parameter Meta-SGD (Li et al. 2017).
    """

    #: Logarithms of step sizes, one for every parameter that is adapted. Logarithms, so that they
    #: stay positive and are learned at the same pace whatever their size.
    log_rates: PyTree[Array]
    utility: Utility = eqx.field(static=True)  #: expected utility of an answer for a target
    #: Number of steps; may be another after training than during it.
    steps: int = eqx.field(static=True)
    #: Whether the whole network is adapted or its head only.
    part: Literal["network", "head"] = eqx.field(static=True)
    learned: bool = eqx.field(static=True)  #: whether the step sizes are trained with the expert
    #: Whether meta-gradients leave out second derivatives.
    first_order: bool = eqx.field(static=True)

    @classmethod
    def start(
        cls,
        expert: Expert,
        utility: Utility,
        *,
        rate: float = 0.01,
        steps: int = 1,
        part: Literal["network", "head"] = "network",
        learned: bool = False,
        first_order: bool = False,
    ) -> "GradientSteps":
        """Begin with the same step size for every parameter of `expert`."""
        adapted = eqx.filter(_part(part)(expert), eqx.is_inexact_array)
        log_rates = jax.tree.map(
            lambda leaf: jax.device_put(np.full(leaf.shape, np.log(rate), leaf.dtype)), adapted
        )
        return cls(log_rates, utility, steps, part, learned, first_order)

    def __call__(self, expert: Expert, support: Samples) -> Expert:
        if self.part == "head":
            # The features stay as they are: they are computed once, not in every step.
            features = jax.vmap(_network(expert).features, axis_name="samples")(support.x)
            bare = eqx.tree_at(lambda e: e.network.features, expert, eqx.nn.Identity())
            adapted = self._ascend(bare, Samples(features, support.y))
            return eqx.tree_at(_head, expert, _head(adapted))
        return self._ascend(expert, support)

    def _ascend(self, expert: Expert, support: Samples) -> Expert:
        where = _part(self.part)
        values, rest = eqx.partition(where(expert), eqx.is_inexact_array)
        log_rates = self.log_rates if self.learned else jax.lax.stop_gradient(self.log_rates)
        rates = jax.tree.map(jnp.exp, log_rates)

        def gain(values: PyTree[Array]) -> Float[Array, ""]:
            adapted = eqx.tree_at(where, expert, eqx.combine(values, rest))
            answers = jax.vmap(adapted, axis_name="samples")(support.x)
            return jnp.mean(jax.vmap(self.utility)(answers, support.y))

        def step(values: PyTree[Array], _: None) -> tuple[PyTree[Array], None]:
            gradient = _clipped(jax.grad(gain)(values))
            if self.first_order:
                gradient = jax.lax.stop_gradient(gradient)
            return jax.tree.map(lambda v, r, g: v + r * g, values, rates, gradient), None

        values, _ = jax.lax.scan(step, values, None, length=self.steps)
        return eqx.tree_at(where, expert, eqx.combine(values, rest))


class LastLayer(Adaptation):
    """The posterior mean of the head's weights, in closed form.

    The head of an expert is the mean of its prior over heads, N(W, LLᵀ), and `factor` L is
    learned. The posterior after the support set, with noise σ², maximises
    E[log-likelihood] − KL(posterior ‖ prior): the free energy of an expert whose prior is over
    heads for its family of tasks, at β₂ = 1. Class labels are taken as logits of ± `gain`, as in
    Bertinetto et al. (2019).
    """

    factor: Float[Array, "f r"]  #: L, a row for each feature and one for the bias
    log_noise: Float[Array, ""]  #: log σ
    gain: Float[Array, ""]  #: logits that stand for a label

    @classmethod
    def start(
        cls,
        expert: Expert,
        *,
        key: Key[Array, ""],
        rank: int = 16,
        noise: float = 0.3,
        gain: float = 3.0,
    ) -> "LastLayer":
        """Begin with a random L of the given rank."""
        n_rows = _head(expert).in_features + 1
        reserve(n_rows, min(rank, n_rows))
        shape = (n_rows, min(rank, n_rows))
        factor = numpy_generator(key).normal(scale=n_rows**-0.5, size=shape)
        return cls(
            jax.device_put(factor.astype(np.float32)),
            jax.device_put(np.float32(np.log(noise))),
            jax.device_put(np.float32(gain)),
        )

    def __call__(self, expert: Expert, support: Samples) -> Expert:
        network: Any = expert.network  # type: ignore[attr-defined]
        features = jax.vmap(network.features)(support.x)
        prior = jax.vmap(network.head)(features)
        residual = self._targets(support.y, prior.shape[1]) - prior
        basis = features @ self.factor[:-1] + self.factor[-1]
        change = self.factor @ ridge(basis, residual, jnp.exp(2.0 * self.log_noise))
        return eqx.tree_at(
            lambda e: (_head(e).weight, _head(e).bias),
            expert,
            (network.head.weight + change[:-1].T, network.head.bias + change[-1]),
        )

    def _targets(self, y: Array, n_outputs: int) -> Float[Array, "k d"]:
        if jnp.issubdtype(y.dtype, jnp.floating):
            return y
        return self.gain * (2.0 * jax.nn.one_hot(y, n_outputs) - 1.0)


def _clipped(gradient: PyTree[Array]) -> PyTree[Array]:
    """Return a gradient of at most the length `LONGEST`, in the same direction."""
    square = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient))
    # Not the length itself, whose derivative at zero is infinite.
    factor = jax.lax.rsqrt(jnp.maximum(square / LONGEST**2, 1.0))
    return jax.tree.map(lambda leaf: leaf * factor, gradient)


def ridge(
    basis: Float[Array, "k r"], target: Float[Array, "k d"], noise: Float[Array, ""]
) -> Float[Array, "r d"]:
    """Return (BᵀB + noise · I)⁻¹ Bᵀ target, by the smaller of the two equal systems."""
    k, r = basis.shape
    if k < r:
        return basis.T @ _solve(basis @ basis.T + noise * jnp.eye(k), target)
    return _solve(basis.T @ basis + noise * jnp.eye(r), basis.T @ target)


def _solve(matrix: Float[Array, "n n"], right: Float[Array, "n d"]) -> Float[Array, "n d"]:
    """Solve a positive definite system.

    The derivative is one more solution of the same system, a third of the work of differentiating
    the Cholesky factor.
    """
    factor = cho_factor(jax.lax.stop_gradient(matrix))
    return jax.lax.custom_linear_solve(
        lambda v: matrix @ v, right, lambda _, v: cho_solve(factor, v), symmetric=True
    )


def _network(expert: Any) -> Any:
    return expert.network


def _head(expert: Any) -> Any:
    return expert.network.head


def _part(part: Literal["network", "head"]) -> Callable[[Any], Any]:
    return _network if part == "network" else _head
