"""Callbacks of agents: reports in environment steps, and evaluation on the way."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from pinfactory import settings as check
from pinfactory.core.training import Callback, Progress, Run
from pinfactory.persistence import atomic_write

from .rollout import report_missing

if TYPE_CHECKING:
    from .agent import SpecialistAgent
    from .base import Agent


class Reports(Callback):
    """Forwards reports every `every` chunks, counted in environment steps.

    After every chunk the agent gets the run, so that an error loses nothing.

    Parameters
    ----------
    agent
        The agent that learns.
    callbacks
        The callbacks that get the reports.
    unit
        Environment steps of an iteration, or one where iterations are counted.
    every
        Chunks that are averaged for one report.
    """

    def __init__(
        self, agent: "Agent", callbacks: Sequence[Callback], unit: int, every: int
    ) -> None:
        self.agent, self.callbacks, self.unit, self.every = agent, callbacks, unit, every

    def start(self, run: Run, total: int) -> None:
        self._infos: list[Any] = []
        self._seconds = 0.0
        for callback in self.callbacks:
            callback.start(self._in_units(run), total * self.unit)

    def chunk(self, progress: Progress, run: Run) -> bool:
        self.agent._run = run
        self._infos.append(progress.info)
        self._seconds += progress.seconds
        if len(self._infos) < self.every and progress.step < progress.total:
            return False
        info = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *self._infos)
        report = progress._replace(
            step=progress.step * self.unit,
            total=progress.total * self.unit,
            info=report_missing(info),
            seconds=self._seconds,
        )
        self._infos, self._seconds = [], 0.0
        votes = [callback.chunk(report, self._in_units(run)) for callback in self.callbacks]
        return any(votes)

    def finish(self) -> None:
        for callback in self.callbacks:
            callback.finish()

    def _in_units(self, run: Run) -> Run:
        return eqx.tree_at(lambda r: r.step, run, run.step * self.unit)


class EvaluationRecord(NamedTuple):
    """How good an agent was at some point of its training, as mean and standard deviation."""

    timesteps: int
    mean: float
    std: float
    stochastic_mean: float
    stochastic_std: float


class EvalCallback(Callback):
    """Evaluate an agent while it learns, and keep the best.

    Parameters
    ----------
    agent
        The agent to evaluate; pass this callback to its `learn`.
    eval_freq
        Environment steps between two evaluations, rounded up to `learn`'s `report_every`.
    n_eval_episodes
        Episodes of each evaluation, as many deterministic as stochastic ones.
    deterministic
        Whether the mean deterministic return tells which agent is best, or the stochastic one.
    best_model_save_path
        Where to save the agent whenever it is better than before. What was measured is kept beside
        it, in a file whose name ends in `.json`, so that a run that is resumed knows the best.
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
        eval_freq: int = 50_000,
        *,
        n_eval_episodes: int = 10,
        deterministic: bool = True,
        best_model_save_path: str | Path | None = None,
        stop_at: float | None = None,
    ) -> None:
        if not hasattr(agent, "evaluate"):
            raise TypeError(f"`agent` must be the agent that learns, but got {agent!r}.")
        self.agent, self.deterministic = agent, deterministic
        self.eval_freq = check.integer("eval_freq", eval_freq, 1)
        self.n_eval_episodes = check.integer("n_eval_episodes", n_eval_episodes, 1)
        self.stop_at = None if stop_at is None else check.number("stop_at", stop_at, -math.inf)
        self.best_model_save_path = best_model_save_path
        self.history: list[EvaluationRecord] = []
        self.best: EvaluationRecord | None = None

    def start(self, run: Run, total: int) -> None:
        step = int(run.step)
        if step and not self.history and self._file is not None and self._file.exists():
            known = _read_records(self._file)
            self.history = [record for record in known if record.timesteps <= step]
            self.best = max(self.history, key=self._score, default=None)
        done = self.history[-1].timesteps if self.history else step
        self._next = done + self.eval_freq

    def chunk(self, progress: Progress, run: Run) -> bool:
        if progress.step < min(self._next, progress.total):
            return False
        self._next = progress.step + self.eval_freq
        seed = int(np.random.default_rng([self.agent.seed, 5, progress.step]).integers(2**31))
        played = self.agent.evaluate(self.n_eval_episodes, seed=seed)
        sure, drawn = played.deterministic, played.stochastic
        now = EvaluationRecord(progress.step, sure.mean, sure.std, drawn.mean, drawn.std)
        self.history.append(now)
        if self.best is None or self._score(now) > self._score(self.best):
            self.best = now
            if self.best_model_save_path is not None:
                self.agent.save(self.best_model_save_path)
        if self._file is not None:
            with atomic_write(self._file) as stream:
                stream.write(json.dumps(self.history).encode())
        return self.stop_at is not None and self._score(now) >= self.stop_at

    @property
    def _file(self) -> Path | None:
        """Where what was measured is kept."""
        best = self.best_model_save_path
        return None if best is None else Path(f"{best}.json")

    def _score(self, record: EvaluationRecord) -> float:
        return record.mean if self.deterministic else record.stochastic_mean


def _read_records(path: Path) -> list[EvaluationRecord]:
    """Return what an earlier process has measured."""
    try:
        rows = json.loads(path.read_bytes())
        if all(math.isfinite(number) for row in rows for number in row):
            return [EvaluationRecord(*row) for row in rows]
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError(
        f"{path} must hold what an EvalCallback has measured, but it is damaged: remove it, and "
        "the best is sought among the evaluations to come."
    )
