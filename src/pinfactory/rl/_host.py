"""Acting in ordinary Gymnasium environments, which step on the host, and learning from it."""

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from gymnasium.vector import VectorEnv

from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.training import Callback, Progress, Run, train

from ._mind import Mind
from ._play import Episodes
from ._policy import Choice, Memory, Policy, n_noise
from ._practice import Study
from ._questions import act, uniforms
from ._rollout import Tally, Trajectory
from ._update import Improver
from ._vector import Step, Vector


class Host:
    """Gymnasium environments as a place to act and learn in.

    Parameters
    ----------
    make
        Builds a vector of so many environments, or returns the only one there is.
    training
        Those to train in.
    """

    def __init__(self, make: Callable[[int], VectorEnv], training: VectorEnv) -> None:
        self._make = make
        self._vector = Vector(training)
        self.n_envs, self.actions = self._vector.n, self._vector.actions
        self.observation_shape = self._vector.observation_shape
        self._place: _Place | None = None

    def start(self, seed: int, mind: Mind) -> Mind:
        """Return what a run keeps of a mind in these environments: itself."""
        return mind

    @staticmethod
    def mind_of(state: Mind) -> Mind:
        """Return the mind in what a run keeps."""
        return state

    def train(
        self,
        run: Run,
        improver: Improver,
        n_steps: int,
        *,
        seed: int,
        steps: int,
        chunk: int,
        callbacks: Sequence[Callback],
    ) -> Run:
        """Act and learn until `steps` iterations are done, as `pinfactory.core.training.train`."""
        infos: list[Any] = []
        began = time.perf_counter()
        for callback in callbacks:
            callback.start(run, steps)
        try:
            while (done := int(run.step)) < steps:
                if self._place is None:
                    self._place = _Place(self._vector, [seed, done])
                experience = self._place.collect(pick(run.state, 0).policy, n_steps)
                trained = train(Study(improver), run, experience, steps=done + 1, chunk=1)
                run = trained.run
                infos.append(trained.history[-1].info)
                if len(infos) == chunk or done + 1 == steps:
                    info = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *infos)
                    progress = Progress(done + 1, steps, info, None, time.perf_counter() - began)
                    infos, began = [], time.perf_counter()
                    votes = [callback.chunk(progress, run) for callback in callbacks]
                    if any(votes):
                        break
        except KeyboardInterrupt:
            warnings.warn(
                f"Training was interrupted at iteration {int(run.step)} of {steps}; what was "
                "learned until then is kept.",
                stacklevel=2,
            )
        finally:
            for callback in callbacks:
                callback.finish()
        return run

    def play(self, policy: Policy, n_episodes: int, deterministic: bool, seed: int) -> Episodes:
        """Play whole episodes, as many at a time as there are environments."""
        vector = Vector(self._make(min(n_episodes, self.n_envs)))
        if vector.env is self._vector.env:
            self._place = None  # training has to start new episodes afterwards
        place = _Place(vector, [seed, 0])
        # Everybody plays a fixed share, so that short episodes do not count more often.
        left = np.full(vector.n, n_episodes // vector.n)
        left[: n_episodes % vector.n] += 1
        returns: list[float] = []
        lengths: list[int] = []
        while left.any():
            *_, step = place.advance(policy, deterministic)
            for i in np.flatnonzero(step.done & (left > 0)):
                left[i] -= 1
                returns.append(float(place.count.last_total[i]))
                lengths.append(int(place.count.last_length[i]))
        if vector.env is not self._vector.env:
            vector.env.close()
        return Episodes(np.array(returns), np.array(lengths))


class _Count(NamedTuple):
    """A `Tally` in NumPy."""

    total: np.ndarray
    length: np.ndarray
    last_total: np.ndarray
    last_length: np.ndarray
    finished: np.ndarray

    def update(self, step: Step) -> "_Count":
        """Take in a step, less where it only reset an environment."""
        total, length = self.total + step.reward, self.length + step.weight.astype(np.int32)
        return _Count(
            np.where(step.done, np.float32(0), total),
            np.where(step.done, 0, length),
            np.where(step.done, total, self.last_total),
            np.where(step.done, length, self.last_length),
            self.finished | step.done,
        )


class _Place:
    """Where a vector of environments is between two steps."""

    def __init__(self, vector: Vector, seed: Sequence[int]) -> None:
        self._vector, self._random = vector, np.random.default_rng(seed)
        self._observation = vector.reset(int(self._random.integers(2**31)))
        self._fresh = np.ones(vector.n, bool)
        self._memory = Memory.start(vector.n)
        zeros, none = np.zeros(vector.n, np.float32), np.zeros(vector.n, np.int32)
        self.count = _Count(zeros, none, zeros, none, np.zeros(vector.n, bool))

    def collect(self, policy: Policy, n_steps: int) -> tuple[Trajectory, Tally]:
        """Act for `n_steps` steps in every environment."""
        steps: Any = stack([self.advance(policy, False) for _ in range(n_steps)])
        before, choice, step = steps
        trajectory = Trajectory(
            before, choice, step.reward, step.terminated, step.done, step.reached, step.weight
        )
        return trajectory, Tally(*map(jax.device_put, self.count))

    def advance(self, policy: Policy, deterministic: bool) -> tuple[np.ndarray, Choice, Step]:
        """Act for one step in every environment."""
        before = self._observation
        self._memory, choice, action = act(
            policy,
            before,
            self._fresh,
            self._memory,
            uniforms(self._random, (self._vector.n, n_noise(policy.actions))),
            np.asarray(deterministic),
        )
        step = self._vector.step(np.asarray(action))
        self._observation, self._fresh = step.observation, step.fresh
        self.count = self.count.update(step)
        return before, choice, step
