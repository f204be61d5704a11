"""Action spaces: from an expert's outputs to a posterior, and from its samples to actions."""

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, Integer, Key, Shaped

from pinfactory import settings as check
from pinfactory.core.families import Categorical, Family, Gaussian

from . import envs

if TYPE_CHECKING:
    from typing import Self
else:
    Self = Any  # as in the base class: runtime type checkers cannot check Self

# Bounds of the log standard deviation before squashing. Wider Gaussians are flat within the box
# already, narrower ones would make probability ratios jump at the smallest step.
MIN_LOG_SCALE, MAX_LOG_SCALE = -5.0, 1.0
# Gymnasium writes the largest float where there is no bound.
UNBOUNDED = 1e30


class MultiCategorical(Family):
    """D independent categoricals: one with a further batch axis, over which everything sums.

    Those with fewer outcomes than the largest give the missing ones no probability.
    """

    choices: Categorical

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.choices.batch_shape[:-1]

    def log_prob(self, value: Integer[Array, "... d"]) -> Float[Array, "..."]:
        return jnp.sum(self.choices.log_prob(value), axis=-1)

    def sample(self, key: Key[Array, ""], shape: tuple[int, ...] = ()) -> Integer[Array, "... d"]:
        return self.choices.sample(key, shape)

    def entropy(self) -> Float[Array, "*batch"]:
        return jnp.sum(self.choices.entropy(), axis=-1)

    def kl(self, other: Self) -> Float[Array, "..."]:
        return jnp.sum(self.choices.kl(other.choices), axis=-1)

    def merge(self, weights: Float[Array, "n ..."]) -> Self:
        # The best product of marginals has the mean of every marginal.
        return type(self)(self.choices.merge(weights))


def from_logits(logits: Float[Array, "... d k"], sizes: tuple[int, ...]) -> MultiCategorical:
    """Normalise logits, with no probability from outcome `sizes[i]` on for variable i."""
    possible = jnp.arange(logits.shape[-1]) < jnp.array(sizes)[:, None]
    return MultiCategorical(Categorical.from_logits(jnp.where(possible, logits, -jnp.inf)))


def invert_cdf(
    distribution: Categorical, uniform: Float[Array, "*batch"]
) -> Integer[Array, "*batch"]:
    """Return the outcome at which the distribution function exceeds a uniform number."""
    reached = jnp.cumsum(distribution.probs, axis=-1) <= uniform[..., None]
    # Rounding may leave the last sum below one: stop at the last outcome with any probability.
    last = jnp.max(jnp.where(distribution.probs > 0, jnp.arange(reached.shape[-1]), 0), axis=-1)
    return jnp.minimum(jnp.sum(reached, axis=-1), last)


class Actions(eqx.Module):
    """The actions of an environment.

    An expert returns a posterior over actions in its own units; `to_env` translates them. Samples
    are made from uniform numbers, which compiled rollouts draw all at once and host rollouts with
    NumPy.
    """

    @property
    @abstractmethod
    def n_outputs(self) -> int:
        """Outputs that an expert's network needs."""

    @property
    @abstractmethod
    def n_noise(self) -> int:
        """Uniform numbers that one sample needs."""

    @abstractmethod
    def __call__(self, outputs: Float[Array, " k"]) -> Family:
        """Read the outputs of an expert's network as a posterior."""

    @abstractmethod
    def draw(self, answer: Family, uniform: Float[Array, "*batch k"]) -> Shaped[Array, "..."]:
        """Return a sample of the answer."""

    @abstractmethod
    def mode(self, answer: Family) -> Shaped[Array, "..."]:
        """Return the most probable action of the posterior."""

    @abstractmethod
    def to_env(self, action: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """Return the action as the environment takes it."""

    @abstractmethod
    def from_env(self, action: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
        """Return an action of the environment in the experts' units."""

    def log_volume(self, action: Shaped[Array, "..."]) -> Float[Array, "..."]:
        """Return log |d to_env / d action|; zero for discrete actions."""
        return jnp.zeros(())


class BoxActions(Actions):
    """Real numbers. Where they are bounded, a = centre + half-width · tanh(u), with u Gaussian.

    Everything a hierarchy learns from, ratios of densities and divergences between them, is the
    same for u and a; the density of a itself is p(u) / |da/du|.

    Not squashed, as in the paper, a = centre + half-width · u, which the environment clips, with a
    log standard deviation that may be any number.
    """

    low: tuple[float, ...] = eqx.field(static=True)
    high: tuple[float, ...] = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    squash: bool = eqx.field(static=True, default=True)

    @property
    def n_outputs(self) -> int:
        return 2 * len(self.low)

    @property
    def n_noise(self) -> int:
        return len(self.low)

    def __call__(self, outputs: Float[Array, " k"]) -> Gaussian:
        mean, log_scale = jnp.split(outputs, 2, axis=-1)
        if not self.squash:
            return Gaussian(mean, log_scale)
        centre = 0.5 * (MAX_LOG_SCALE + MIN_LOG_SCALE)
        half = 0.5 * (MAX_LOG_SCALE - MIN_LOG_SCALE)
        # An output of zero means a log standard deviation of -0.5.
        start = np.arctanh((-0.5 - centre) / half).astype(np.float32)
        return Gaussian(mean, centre + half * jnp.tanh(start + log_scale / half))

    def draw(self, answer: Family, uniform: Float[Array, "*batch k"]) -> Float[Array, "*batch k"]:
        assert isinstance(answer, Gaussian)
        return answer.mean + answer.scale * ndtri(uniform)

    def mode(self, answer: Family) -> Float[Array, "*batch k"]:
        assert isinstance(answer, Gaussian)
        return answer.mean

    def to_env(self, action: Float[Array, "*batch k"]) -> Float[Array, "..."]:
        bounded, centre, half = self._range()
        inside = centre + half * (jnp.tanh(action) if self.squash else jnp.clip(action, -1.0, 1.0))
        return jnp.where(bounded, inside, action).reshape(*action.shape[:-1], *self.shape)

    def from_env(self, action: Float[Array, "..."]) -> Float[Array, "*batch k"]:
        bounded, centre, half = self._range()
        flat = action.reshape(*action.shape[: action.ndim - len(self.shape)], -1)
        own = (flat - centre) / half
        if self.squash:  # arctanh is infinite at the bounds themselves
            own = jnp.arctanh(jnp.clip(own, -1.0 + 1e-6, 1.0 - 1e-6))
        return jnp.where(bounded, own, flat)

    def log_volume(self, action: Float[Array, "*batch k"]) -> Float[Array, "*batch"]:
        bounded, _, half = self._range()
        # log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), exact where tanh is 1 in floats.
        slope = 2.0 * (jnp.log(2.0) - action - jnp.logaddexp(0.0, -2.0 * action))
        slope = self.squash * slope
        return jnp.sum(jnp.where(bounded, jnp.log(half) + slope, 0.0), axis=-1)

    def _range(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        bounded = np.isfinite(self.low)
        # Unbounded numbers are not squashed; any range will do for the arithmetic.
        low, high = np.where(bounded, self.low, -1.0), np.where(bounded, self.high, 1.0)
        centre, half = 0.5 * (low + high), 0.5 * (high - low)
        return bounded, centre.astype(np.float32), half.astype(np.float32)


class DiscreteActions(Actions):
    """One of n actions, counted from `first`."""

    n: int = eqx.field(static=True)
    first: int = eqx.field(static=True, default=0)

    @property
    def n_outputs(self) -> int:
        return self.n

    @property
    def n_noise(self) -> int:
        return 1

    def __call__(self, outputs: Float[Array, " k"]) -> Categorical:
        return Categorical.from_logits(outputs)

    def draw(self, answer: Family, uniform: Float[Array, "*batch 1"]) -> Integer[Array, "*batch"]:
        assert isinstance(answer, Categorical)
        return invert_cdf(answer, uniform[..., 0])

    def mode(self, answer: Family) -> Integer[Array, "*batch"]:
        assert isinstance(answer, Categorical)
        return jnp.argmax(answer.log_probs, axis=-1)

    def to_env(self, action: Integer[Array, "*batch"]) -> Integer[Array, "*batch"]:
        return action + self.first

    def from_env(self, action: Integer[Array, "*batch"]) -> Integer[Array, "*batch"]:
        return action - self.first


class MultiDiscreteActions(Actions):
    """Several choices at once, among `sizes[i]` outcomes each."""

    sizes: tuple[int, ...] = eqx.field(static=True)

    @property
    def n_outputs(self) -> int:
        return len(self.sizes) * max(self.sizes)

    @property
    def n_noise(self) -> int:
        return len(self.sizes)

    def __call__(self, outputs: Float[Array, " k"]) -> MultiCategorical:
        return from_logits(outputs.reshape(len(self.sizes), max(self.sizes)), self.sizes)

    def draw(self, answer: Family, uniform: Float[Array, "*batch d"]) -> Integer[Array, "*batch d"]:
        assert isinstance(answer, MultiCategorical)
        return invert_cdf(answer.choices, uniform)

    def mode(self, answer: Family) -> Integer[Array, "*batch d"]:
        assert isinstance(answer, MultiCategorical)
        return jnp.argmax(answer.choices.log_probs, axis=-1)

    def to_env(self, action: Integer[Array, "*batch d"]) -> Integer[Array, "*batch d"]:
        return action

    def from_env(self, action: Integer[Array, "*batch d"]) -> Integer[Array, "*batch d"]:
        return action


def box_actions(low: np.ndarray, high: np.ndarray, squash: bool = True) -> BoxActions:
    """Return actions of a box whose numbers are bounded on both sides or on none."""
    shape = np.shape(low)
    bounded_below, bounded_above = (np.abs(bound).ravel() < UNBOUNDED for bound in (low, high))
    if np.any(bounded_below != bounded_above):
        raise ValueError(
            "Box actions must be bounded on both sides or on neither, but got "
            f"low={low}, high={high}; rescale them with gymnasium.wrappers.RescaleAction."
        )
    low, high = (np.where(np.abs(b) < UNBOUNDED, b, np.inf).ravel() for b in (low, high))
    return BoxActions(tuple(low.tolist()), tuple(high.tolist()), shape, squash)


def env_actions(space: envs.Box | envs.Discrete, squash: bool = True) -> Actions:
    """Return the actions of an environment written in JAX."""
    if isinstance(space, envs.Discrete):
        return DiscreteActions(space.n)
    return box_actions(np.array(space.low), np.array(space.high), squash)


def stored_actions(kind: str, fields: dict[str, Any]) -> Actions:
    """Return the actions that a file describes; a ValueError says that there are none such."""
    types = (BoxActions, DiscreteActions, MultiDiscreteActions)
    if kind not in (each.__name__ for each in types):
        raise ValueError(f"actions must be of a known kind, but got {kind!r}.")
    actions = next(each for each in types if each.__name__ == kind)(**fields)
    if isinstance(actions, DiscreteActions):
        check.integer("n", actions.n, 1)
        check.integer("first", actions.first, -check.MOST_COUNTED)
    elif isinstance(actions, MultiDiscreteActions):
        check.sizes("sizes", actions.sizes)
    else:
        _check_box(actions)
    return actions


def _check_box(actions: BoxActions) -> None:
    low, high = np.asarray(actions.low, float), np.asarray(actions.high, float)
    lengths = [check.integer("shape", length, 0) for length in actions.shape]
    bounded = np.isfinite(low)
    if low.ndim != 1 or low.shape != high.shape or math.prod(lengths) != len(low):
        raise ValueError(f"the bounds of actions must be as many as these, but got {actions}.")
    # Bounds beyond these are none, as `box_actions` says.
    sound = (low <= high) & (np.abs(low) < UNBOUNDED) & (np.abs(high) < UNBOUNDED)
    if not np.where(bounded, sound, np.isinf(low) & np.isinf(high)).all():
        raise ValueError(f"actions must be bounded on both sides or on neither, but got {actions}.")
