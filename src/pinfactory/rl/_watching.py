"""What watches an agent learn: it is kept, reported in environment steps, and evaluated."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np

from pinfactory.core.training import Callback, Progress, Run

if TYPE_CHECKING:
    from ._agent import SpecialistAgent


class Keep(Callback):
    """Gives an agent whatever has been learned, so that no error takes it away."""

    def __init__(self, agent: "SpecialistAgent") -> None:
        self.agent = agent

    def chunk(self, progress: Progress, run: Run) -> None:
        self.agent._run = run


class History(Callback):
    """Writes down all progress."""

    def __init__(self, history: list[Progress]) -> None:
        self.history = history

    def chunk(self, progress: Progress, run: Run) -> None:
        self.history.append(progress)


class Function(Callback):
    """A function of the progress that returns True to stop, as a callback."""

    def __init__(self, function: Callable[[Progress], Any]) -> None:
        self.function = function

    def chunk(self, progress: Progress, run: Run) -> bool:
        return bool(self.function(progress))


class InTimesteps(Callback):
    """Tells others of a run in environment steps, not in iterations."""

    def __init__(self, callbacks: Sequence[Callback], per_iteration: int) -> None:
        self.callbacks, self.per_iteration = callbacks, per_iteration

    def start(self, run: Run, total: int) -> None:
        for callback in self.callbacks:
            callback.start(self._run(run), total * self.per_iteration)

    def chunk(self, progress: Progress, run: Run) -> bool:
        progress = progress._replace(
            step=progress.step * self.per_iteration, total=progress.total * self.per_iteration
        )
        votes = [callback.chunk(progress, self._run(run)) for callback in self.callbacks]
        return any(votes)

    def finish(self) -> None:
        for callback in self.callbacks:
            callback.finish()

    def _run(self, run: Run) -> Run:
        return eqx.tree_at(lambda r: r.step, run, run.step * self.per_iteration)


class Evaluated(NamedTuple):
    """How good an agent was at some point of its training."""

    timesteps: int
    mean: float
    deviation: float


class Evaluation(Callback):
    """Evaluate an agent while it learns, and keep the best.

    Parameters
    ----------
    agent
        Who is to be evaluated; pass this to its `learn` as a callback.
    every
        Environment steps between two evaluations, rounded up to `learn`'s `report_every`.
    n_episodes, deterministic
        As of `SpecialistAgent.evaluate`.
    path
        Where to save the agent whenever it is better than ever.
    stop_at
        Mean return at which to stop training.

    Attributes
    ----------
    history
        What was measured.
    best
        The best of it, None before the first.
    """

    def __init__(
        self,
        agent: "SpecialistAgent",
        every: int = 50_000,
        *,
        n_episodes: int = 10,
        deterministic: bool = True,
        path: str | Path | None = None,
        stop_at: float | None = None,
    ) -> None:
        self.agent, self.every, self.n_episodes = agent, every, n_episodes
        self.deterministic, self.path, self.stop_at = deterministic, path, stop_at
        self.history: list[Evaluated] = []
        self.best: Evaluated | None = None

    def start(self, run: Run, total: int) -> None:
        self._next = int(run.step) + self.every

    def chunk(self, progress: Progress, run: Run) -> bool:
        if progress.step < min(self._next, progress.total):
            return False
        self._next = progress.step + self.every
        returns = self.agent.evaluate(self.n_episodes, deterministic=self.deterministic).returns
        now = Evaluated(progress.step, float(np.mean(returns)), float(np.std(returns)))
        self.history.append(now)
        if self.best is None or now.mean > self.best.mean:
            self.best = now
            if self.path is not None:
                self.agent.save(self.path)
        return self.stop_at is not None and now.mean >= self.stop_at
