"""Families of tasks: environments that differ in some parameters, drawn on the host.

The paper's table of task distributions (Section 6.3) is for the inverted double pendulum of Bullet:
its motor gain of 200, its goal offset of 0.3, its distance penalty of 0.01, its start within ±0.1
and its gravity of 9.8 lie in or near the ranges of the table. What we read into it:

- *Distance penalty*: price of the tip's squared distance from the middle of the rail.
- *Goal position*: Bullet's reward has (height + 0.3 − 2)², the height that of the upper pole's
  centre; an offset of g puts the goal for the tip at a height of 2.3 − g. The table's [0, 3] for
  T′ is taken for [0, 0.3].
- *Start position*: the angles of both hinges, drawn once for each task, without further noise.
- *Motor torques*: not explained. Taken for a constant force of the motor on the cart, in newtons,
  beside the one that is commanded.
- *Motor actuation*: force for an action of 1.
- *Inverted control*: the sign of that force.
- A step lasts 0.0165 s, as Bullet's. All else is as in Gymnasium's model.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree

from pinfactory.callbacks import fingerprint
from pinfactory.core.batches import Source
from pinfactory.persistence import described
from pinfactory.rl.envs import CartPole, DoublePendulum, Env, Pendulum

Params = TypeVar("Params")


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Equally likely between `low` and `high`."""

    low: float
    high: float

    def draw(self, random: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
        """Draw n numbers."""
        return random.uniform(self.low, self.high, n)


@dataclasses.dataclass(frozen=True)
class Either:
    """`first` with the given probability, otherwise `second`."""

    first: float
    second: float
    probability: float = 0.5

    def draw(self, random: np.random.Generator, n: int) -> Float[np.ndarray, " n"]:
        """Draw n numbers."""
        return np.where(random.random(n) < self.probability, self.first, self.second)


Entry = Uniform | Either | float


@runtime_checkable
class TaskFamily(Protocol):
    """A distribution over the parameters of one environment."""

    @property
    def env(self) -> Env:
        """The environment that all tasks share."""
        ...

    def draw(self, random: np.random.Generator, n: int) -> Any:
        """Return the parameters of n tasks: every leaf has a leading axis of n."""
        ...

    def describe(self, params: Any) -> dict[str, np.ndarray]:
        """Return what tells tasks apart, by name: one number for each task."""
        ...


def checked_family(name: str, family: Any) -> TaskFamily:
    """Return a family of tasks, or say what is wrong with it."""
    if not isinstance(family, TaskFamily):
        raise ValueError(
            f"`{name}` must be a family of tasks with `env`, `draw` and `describe`, such as a "
            f"ParameterFamily, but got {family!r}."
        )
    return family


def identify(family: TaskFamily) -> dict[str, str]:
    """Return what a family and its environment are called, and what tells its tasks from others."""
    drawn = jax.tree.leaves(family.draw(np.random.default_rng(0), 16))
    name = f"{type(family).__name__} of {described(family.env)}"
    return {"environment": name, "tasks": fingerprint(*drawn)}


@dataclasses.dataclass(frozen=True)
class ParameterFamily:
    """Tasks whose parameters are drawn independently of each other.

    Parameters
    ----------
    env
        The environment.
    parameters
        For each parameter that is not at its default: a number or a distribution, for a parameter
        that is a vector a sequence of these.

    Examples
    --------
    >>> import numpy as np
    >>> from pinfactory.rl.envs import Pendulum
    >>> family = ParameterFamily(
    ...     Pendulum(), {"mass": Uniform(0.5, 2.0), "control_sign": Either(1.0, -1.0)}
    ... )
    >>> params = family.draw(np.random.default_rng(0), 64)
    >>> params.mass.shape, sorted(family.describe(params))
    ((64,), ['control_sign', 'mass'])
    """

    env: Env
    parameters: Mapping[str, Entry | Sequence[Entry]]

    def __post_init__(self) -> None:
        known = {
            field.name: np.shape(getattr(self.env.default_params(), field.name))
            for field in dataclasses.fields(self.env.default_params())
        }
        for name, entry in self.parameters.items():
            if name not in known:
                raise ValueError(f"A parameter must be one of {sorted(known)}, but got {name!r}.")
            shape = (len(entry),) if isinstance(entry, Sequence) else ()
            if shape != known[name]:
                raise ValueError(
                    f"{name!r} must have entries of shape {known[name]}, but got {shape}."
                )

    def draw(self, random: np.random.Generator, n: int) -> Any:
        """Return the parameters of n tasks: every leaf has a leading axis of n."""
        defaults = self.env.default_params()
        drawn = {
            name: np.stack([_draw(e, random, n) for e in entry], axis=-1)
            if isinstance(entry, Sequence)
            else _draw(entry, random, n)
            for name, entry in self.parameters.items()
        }
        for field in dataclasses.fields(defaults):
            default = np.asarray(getattr(defaults, field.name))
            drawn.setdefault(field.name, np.broadcast_to(default, (n, *default.shape)))
        # One transfer for each leaf; JAX would compile a program for every n.
        arrays = {name: jax.device_put(np.asarray(v, np.float32)) for name, v in drawn.items()}
        return dataclasses.replace(defaults, **arrays)

    def describe(self, params: Any) -> dict[str, np.ndarray]:
        """Return the parameters that are drawn, by name: one number for each task."""
        columns: dict[str, np.ndarray] = {}
        for name, entry in self.parameters.items():
            values = np.asarray(getattr(params, name))
            if not isinstance(entry, Sequence):
                if not isinstance(entry, float | int):
                    columns[name] = values
                continue
            drawn = [i for i, e in enumerate(entry) if not isinstance(e, float | int)]
            for i in drawn:
                columns[name if len(drawn) == 1 else f"{name}[{i}]"] = values[:, i]
        return columns


def _draw(entry: Entry, random: np.random.Generator, n: int) -> np.ndarray:
    if isinstance(entry, Uniform | Either):
        return entry.draw(random, n)
    return np.full(n, float(entry))


def _double_pendulum(
    distance_penalty: Uniform,
    goal_offset: Uniform,
    start: float,
    torque: Uniform,
    actuation: Uniform,
    gravity: Uniform,
    max_steps: int,
) -> ParameterFamily:
    angle = Uniform(-start, start)
    return ParameterFamily(
        DoublePendulum(max_steps=max_steps, frame_skip=1),
        {
            "distance_cost": (distance_penalty, 1.0),
            "goal": (0.0, Uniform(2.3 - goal_offset.high, 2.3 - goal_offset.low)),
            "start_position": (0.0, angle, angle),
            "position_noise": 0.0,
            "velocity_noise": 0.0,
            "applied_force": (torque, 0.0, 0.0),
            "gear": actuation,
            "control_sign": Either(1.0, -1.0, 0.5),
            "gravity": (0.0, Uniform(-gravity.high, -gravity.low)),
            "timestep": 0.0165,
        },
    )


def double_pendulum_tasks(max_steps: int = 1000) -> ParameterFamily:
    """Return the paper's T: double pendulums with weak gravity, to learn from."""
    return _double_pendulum(
        distance_penalty=Uniform(1e-3, 1e-1),
        goal_offset=Uniform(0.3, 0.4),
        start=0.15,
        torque=Uniform(0.0, 5.0),
        actuation=Uniform(185.0, 215.0),
        gravity=Uniform(0.01, 4.9),
        max_steps=max_steps,
    )


def double_pendulum_new_tasks(max_steps: int = 1000) -> ParameterFamily:
    """Return the paper's T′: strong gravity and farther starts, to be evaluated on."""
    return _double_pendulum(
        distance_penalty=Uniform(1e-3, 1e-2),
        goal_offset=Uniform(0.0, 0.3),
        start=0.25,
        torque=Uniform(0.0, 3.0),
        actuation=Uniform(175.0, 225.0),
        gravity=Uniform(4.9, 9.8),
        max_steps=max_steps,
    )


def pendulum_tasks() -> ParameterFamily:
    """Return pendulums of different mass and length, half of them with an inverted motor."""
    return ParameterFamily(
        Pendulum(),
        {"mass": Uniform(0.7, 1.3), "length": Uniform(0.8, 1.2), "control_sign": Either(1.0, -1.0)},
    )


def cart_pole_tasks() -> ParameterFamily:
    """Return cart-poles of different length and force, half of them with an inverted motor."""
    return ParameterFamily(
        CartPole(),
        {
            "half_length": Uniform(0.3, 0.8),
            "max_force": Uniform(6.0, 14.0),
            "gravity": Uniform(6.0, 13.0),
            "control_sign": Either(1.0, -1.0),
        },
    )


class DrawnTasks(Source):
    """A source whose batch is the tasks that were drawn, as they are."""

    def batch(self, chosen: PyTree[Array]) -> PyTree[Array]:
        """Return the parameters of the tasks."""
        return chosen


class TaskStream:
    """Draws `n_tasks` tasks for every step.

    They depend on the seed and the number of the step alone, so that neither a resume nor the
    length of a chunk changes them.
    """

    def __init__(self, family: TaskFamily, n_tasks: int) -> None:
        self.family, self.n_tasks = family, n_tasks

    def __call__(self, seeds: Sequence[Sequence[int]], start: int, n_steps: int) -> PyTree:
        def stacked(*leaves: Any) -> np.ndarray:
            arrays = np.stack([np.asarray(leaf) for leaf in leaves])
            return arrays.reshape(len(seeds), n_steps, *arrays.shape[1:])

        drawn = [
            self.family.draw(np.random.default_rng([*seed, step]), self.n_tasks)
            for seed in seeds
            for step in range(start, start + n_steps)
        ]
        return jax.tree.map(stacked, *drawn)
