"""What the agents that we compare with share: settings, iterations, new tasks."""

from abc import abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pinfactory import settings as check
from pinfactory.callbacks import Callbacks
from pinfactory.core.compiling import with_library_settings
from pinfactory.core.hierarchy import pick
from pinfactory.core.training import Run, Steps
from pinfactory.rl.base import Agent
from pinfactory.rl.meta import TaskFamily
from pinfactory.rl.meta.families import checked_family, identify


@dataclass(kw_only=True, eq=False, repr=False)
class TaskBaseline(Agent):
    """An agent that learns from a family of tasks; subclasses describe its parameters."""

    family: TaskFamily = field(kw_only=False)
    hidden: tuple[int, ...] = (64, 64)
    n_tasks: int = 64
    n_steps: int = 128
    learning_rate: float = 1e-3
    tensorboard_log: str | Path | None = None
    verbose: bool = False
    seed: int = 0

    @abstractmethod
    def _build(self) -> tuple[Steps, Any]:
        """Return the learner, and the state before the first iteration."""

    @abstractmethod
    def _data(self, run: Run) -> Any:
        """Return what the next iteration learns from."""

    @with_library_settings
    def __post_init__(self) -> None:
        checked_family("family", self.family)
        for name in ("n_tasks", "n_steps"):
            check.integer(name, getattr(self, name), 1)
        check.sizes("hidden", self.hidden)
        check.number("learning_rate", self.learning_rate, 0.0, open_low=True)
        check.integer("seed", self.seed, 0, most=2**32 - 1)
        self.history_ = []
        self._random = np.random.default_rng(self.seed)
        learner, initial = self._build()
        self._learner: Any = learner
        self._run: Run = self._start_run(initial)

    @property
    def state_(self) -> Any:
        """All that has been learned."""
        return pick(self._run.state, 0)

    @property
    def num_timesteps(self) -> int:
        """Environment steps taken."""
        return int(self._run.step) * self.n_tasks * self.n_steps

    @with_library_settings
    def learn(
        self, iterations: int, callbacks: Callbacks = None, *, progress_bar: bool = False
    ) -> Any:
        """Meta-learn for so many more iterations; callbacks as of `MetaSpecialistAgent.learn`.

        There are no checkpoints: what comes next depends on everything that was drawn before.
        """
        last = int(self._run.step) + check.integer("iterations", iterations, 1)
        self._go_on(
            self._learner,
            self._run,
            self._data,
            last=last,
            chunk=1,
            callbacks=callbacks,
            progress_bar=progress_bar,
        )
        return self

    def _new_tasks(
        self, tasks: TaskFamily | None, n_tasks: int, seed: int
    ) -> tuple[TaskFamily, Any]:
        """Return the family to evaluate in, and the parameters of tasks drawn from it."""
        family = self.family if tasks is None else checked_family("tasks", tasks)
        check.integer("n_tasks", n_tasks, 1)
        check.integer("seed", seed, 0)
        return family, family.draw(np.random.default_rng([self.seed, 1, seed]), n_tasks)

    def _subject(self) -> dict[str, str]:
        return identify(self.family)
