"""The on-line learning rule: one gradient step on a loss, and the loss whose descent climbs J.

Every setting learns by the one `Learner` here. What differs is its loss: a function of the model,
the state, a batch and a key that returns the value to be minimised, the constraints it has
brought up to date, and what is to be logged.
"""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, Key, PyTree

from .compiling import compiled_fully
from .constraints import Constraints, Schedule, Scheduled
from .families import Family
from .hierarchy import Hierarchy
from .information import BITS_PER_NAT
from .objective import Expectation, Objective, evaluate, gain_of_hindsight

Model = TypeVar("Model")
# E_{p(y|x,m)}[U] of one answer for one target
Utility = Callable[[Family, PyTree[Array]], Float[Array, ""]]
# (model, state, batch, key) -> (value, (constraints, info))
Loss = Callable[[Any, "State", Any, Key[Array, ""]], tuple[Float[Array, ""], tuple[Any, Any]]]

# The optimiser sees all parameters as one vector: a loop over one long array takes a fraction of
# the time of as many loops as there are arrays, each of which costs more to start than to compute.
ADAM = optax.scale_by_adam()
# The running mean of the parameters is over the last tenth of all steps, up to a hundred of them.
_SHARE_AVERAGED, _SMALLEST_RATE = 10.0, 0.01
# From so many parameters on, their arrays are concatenated.
_LARGE_VECTOR = 8192


class Data(eqx.Module):
    """Samples to learn from: inputs, targets, and how much each counts."""

    x: PyTree[Array]
    y: PyTree[Array]
    weight: Float[Array, " n"]


class State(eqx.Module, Generic[Model]):
    """Everything that changes during training, and the hyper-parameters a sweep may vary."""

    model: Model  #: what is learned; gradients change its floating-point arrays
    #: What the loss brings up to date itself: priors, resources, the scale of utilities.
    constraints: Any
    optimiser: optax.OptState  #: state of the optimiser
    #: Running mean of the parameters as one vector; None if it is not kept.
    average: Float[Array, " parameters"] | None
    step: Int[Array, ""]  #: how many steps were taken
    learning_rate: Schedule  #: step size as a function of `step`
    weight_decay: Float[Array, ""]  #: decay of the parameters per unit of learning rate

    def averaged(self) -> "State[Model]":
        """Return the state with the running mean of its parameters in place of the last ones.

        Steps of a constant size keep parameters moving around what they have learned. Their mean
        is closer to it (Polyak & Juditsky 1992). Where none is kept, the state stays as it is.
        """
        if self.average is None:
            return self
        _, unravel = ravel_pytree(_parameters(self.model))
        model = eqx.combine(unravel(self.average), self.model)
        return eqx.tree_at(lambda state: state.model, self, model)


def with_schedules(found: Any, asked: Any) -> Any:
    """Return the run of a `State`, with the schedules of another that may be longer or shorter."""

    def schedules(run: Any) -> list[Any]:
        constraints = run.state.constraints
        resources = () if constraints is None else constraints.resources
        lengths = [each.steps for each in resources if isinstance(each, Scheduled)]
        return [run.state.learning_rate, *lengths]

    return eqx.tree_at(schedules, found, schedules(asked))


class Info(NamedTuple):
    """J and its parts in one step; information in bits, one entry per stage."""

    objective: Float[Array, ""]
    utility: Float[Array, ""]
    information: tuple[Float[Array, ""], ...]
    beta: tuple[Float[Array, ""], ...]

    @classmethod
    def of(cls, parts: Objective, weights: Float[Array, " n"], constraints: Constraints) -> "Info":
        """Sum up J and its parts over a batch; `constraints` are those that were in force."""
        return cls(
            jnp.sum(weights * parts.value),
            jnp.sum(weights * parts.utility),
            tuple(jnp.sum(weights * nats) * BITS_PER_NAT for nats in parts.information),
            constraints.betas,
        )


class Learner(eqx.Module):
    """Gradient descent on a loss."""

    #: What to minimise. Numbers that it holds as arrays are traced: another value compiles
    #: nothing.
    loss: Loss
    #: An Optax transformation of the gradient, without the learning rate.
    optimiser: optax.GradientTransformation = eqx.field(static=True, default=ADAM)
    #: Whether the state keeps the running mean of its parameters.
    keep_average: bool = eqx.field(static=True, default=False)

    def init(
        self,
        model: Model,
        constraints: Any = None,
        *,
        learning_rate: Schedule | Float[Array, ""] | float = 3e-4,
        weight_decay: Float[Array, ""] | float = 0.0,
    ) -> State[Model]:
        """Return the state before the first step."""
        parameters, optimiser = _beginning(self.optimiser, _parameters(model))
        if not isinstance(learning_rate, Schedule):
            learning_rate = Schedule.constant(learning_rate)
        return State(
            model,
            constraints,
            optimiser,
            parameters if self.keep_average else None,
            jnp.asarray(0),
            learning_rate,
            jnp.asarray(weight_decay),
        )

    def step(
        self, key: Key[Array, ""], state: State[Model], batch: Any
    ) -> tuple[State[Model], Any]:
        """Take one gradient step on a batch."""

        @eqx.filter_grad(has_aux=True)
        def descend(model: Model) -> tuple[Array, tuple[Any, Any]]:
            return self.loss(model, state, batch, key)

        gradient, (constraints, info) = descend(state.model)
        _, unravel = ravel_pytree(_parameters(state.model))
        parameters = _joined(_parameters(state.model))
        direction, optimiser = self.optimiser.update(_joined(gradient), state.optimiser, parameters)
        rate = state.learning_rate(state.step)
        parameters -= rate * (direction + state.weight_decay * parameters)
        average, step = state.average, state.step + 1
        if average is not None:
            share = jnp.maximum(_SHARE_AVERAGED / (step + _SHARE_AVERAGED), _SMALLEST_RATE)
            average = optax.incremental_update(parameters, average, share)
        new = State(
            eqx.combine(unravel(parameters), state.model),
            constraints,
            optimiser,
            average,
            step,
            state.learning_rate,
            state.weight_decay,
        )
        return new, info


class CommitteeLoss(eqx.Module):
    """−J of a hierarchy on samples (equations 6 to 11), whose weights are one in the mean."""

    #: Expected utility of one expert's answer for one target.
    utility: Utility = eqx.field(static=True)
    #: Whether J is the exact expectation over experts, or that of one sampled expert per input, as
    #: the paper writes it.
    expectation: Expectation = eqx.field(static=True, default="exact")
    #: Whether the utility is that of the whole committee, log Σ p(m|x) exp U, the log-likelihood
    #: of the mixture if U is that of an expert; else it is the mean Σ p(m|x) U of its experts.
    mixture: bool = eqx.field(static=True, default=False)

    def __call__(
        self, model: Hierarchy, state: State, batch: Data, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], tuple[Constraints, Info]]:
        network_key, choice_key = jax.random.split(key)
        # By the number of rows, not by their weight: a batch of heavy rows has to count for more.
        weights = batch.weight / len(batch.weight)
        keys = jax.random.split(network_key, len(weights))
        decision = jax.vmap(lambda x, k: model(x, key=k))(batch.x, keys)
        utility = expected_utilities(self.utility, decision.answers, batch.y)
        parts, constraints = evaluate(
            choice_key, decision, utility, weights, state.constraints, self.expectation
        )
        if self.mixture:
            gain = gain_of_hindsight(decision, utility)
            parts = parts._replace(value=parts.value + gain, utility=parts.utility + gain)
        info = Info.of(parts, weights, state.constraints)
        return -info.objective, (constraints, info)


def expected_utilities(
    utility: Utility, answers: Family, target: PyTree[Array]
) -> Float[Array, "n ..."]:
    """Return the utility of every expert's answer to every input."""
    one_input = utility
    for _ in answers.batch_shape[1:]:
        one_input = jax.vmap(one_input, in_axes=(0, None))
    return jax.vmap(one_input)(answers, target)


@compiled_fully
def _beginning(
    optimiser: optax.GradientTransformation, tree: PyTree[Array]
) -> tuple[Float[Array, " parameters"], optax.OptState]:
    """Return all arrays as one vector, and the state of the optimiser before the first step."""
    parameters, _ = ravel_pytree(tree)
    return parameters, optimiser.init(parameters)


def _joined(tree: PyTree[Array]) -> Float[Array, " parameters"]:
    """Return all arrays as one vector, in the order of `ravel_pytree`.

    Small parts are written one after the other: a concatenation would ask of every number from
    which part it comes. Of large ones every write would copy the whole vector: with 500,000
    numbers that took 6 ms, a concatenation 0.3 ms.
    """
    parts = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    ends = np.cumsum([len(part) for part in parts])
    if ends[-1] > _LARGE_VECTOR:
        return jnp.concatenate(parts)
    joined = jnp.zeros(ends[-1], jnp.result_type(*parts))
    for end, part in zip(ends, parts, strict=True):
        joined = jax.lax.dynamic_update_slice(joined, part, (int(end) - len(part),))
    return joined


def _parameters(model: PyTree) -> PyTree[Array]:
    """Return what gradients change."""
    return eqx.filter(model, eqx.is_inexact_array)


def scan(
    step: Callable[[Any, Any], tuple[Any, Any]], state: Any, xs: PyTree, length: int | None = None
) -> tuple[Any, Any]:
    """Return `jax.lax.scan` of a state with parts that are no arrays, which stay as they are."""
    arrays, static = eqx.partition(state, eqx.is_array)

    def one(arrays: PyTree, x: Any) -> tuple[PyTree, Any]:
        state, info = step(eqx.combine(arrays, static), x)
        return eqx.filter(state, eqx.is_array), info

    arrays, infos = jax.lax.scan(one, arrays, xs, length)
    return eqx.combine(arrays, static), infos
