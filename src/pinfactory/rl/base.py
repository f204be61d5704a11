"""What all agents share: settings, training with callbacks and checkpoints, files."""

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from pinfactory import settings as check
from pinfactory.callbacks import (
    Callbacks,
    Checkpoint,
    JsonLines,
    ProgressBar,
    TensorBoard,
    as_callbacks,
)
from pinfactory.core.batches import Batches
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import stack
from pinfactory.core.information import Information
from pinfactory.core.training import Callback, Progress, Run, Steps, TrainingInterrupted, train
from pinfactory.persistence import load, save_model

from .callbacks import History, KeepState, Reports

# Settings of this session that a file does not keep.
SESSION = ("verbose", "tensorboard_log")
BETAS = ("beta_selector", "beta_expert")
# A budget in bits is met if it is missed by no more than this part of it.
BUDGET_TOLERANCE = 0.05


class Agent:
    """Settings and training.

    Attributes
    ----------
    history_ : list of Progress
        What `learn` reported.
    """

    history_: list[Progress]
    _settings: dict[str, Any]
    _run: Run | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn's estimators do."""
        return dict(self._settings)

    def __repr__(self) -> str:
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(type(self)).parameters.items()
        }
        changed = [
            f"{name}={value!r}"
            for name, value in self._settings.items()
            if not _equal(value, defaults.get(name))
        ]
        return f"{type(self).__name__}({', '.join([self._subject(), *changed])})"

    @abstractmethod
    def _subject(self) -> str:
        """Return what the agent learns in, as `repr` shows it."""

    def _start_run(self, state: PyTree, iteration: Array) -> Run:
        """Return a run that begins with the given state at an iteration."""
        run = Run.start(jnp.stack([jax.random.key(self._settings["seed"])]), stack([state]))
        return eqx.tree_at(lambda r: r.step, run, jnp.asarray(int(iteration)))

    def _train(
        self,
        learner: Steps,
        run: Run,
        data: Any,
        *,
        steps: int,
        chunk: int,
        callbacks: Callbacks,
        unit: int = 1,
        every: int = 1,
        batches: Batches | None = None,
        progress_bar: bool = False,
        checkpoint: str | Path | None = None,
    ) -> None:
        """Train until `steps` iterations are done, and keep the run, whatever happens.

        A report is an average over `every` chunks of `chunk` iterations, in which `unit` steps
        each are counted.
        """
        reported: list[Callback] = [History(self.history_)]
        if progress_bar or self._settings["verbose"]:
            name = " steps" if unit > 1 else " iterations"
            reported.append(ProgressBar(type(self).__name__, unit=name))
        if (directory := self._settings["tensorboard_log"]) is not None:
            reported += [TensorBoard(directory), JsonLines(Path(directory) / "progress.jsonl")]
        reported += as_callbacks(callbacks)
        all_callbacks: list[Callback] = [KeepState(self), Reports(reported, unit, every)]
        if checkpoint is not None:
            all_callbacks.append(Checkpoint(checkpoint, every, identity=self._identity()))
        before, self._run = self._run, run
        try:
            self._run = train(
                learner,
                run,
                data,
                steps=steps,
                chunk=chunk,
                batches=batches,
                callbacks=all_callbacks,
            ).run
        except NonFiniteError as error:
            self._run = error.run
            raise
        except TrainingInterrupted as stop:
            if int(stop.trained.run.step) == int(run.step):
                self._run = before
                raise
            self._run = stop.trained.run
            warnings.warn(
                f"{type(self).__name__}: {stop}; what was learned until then is kept.", stacklevel=3
            )
            raise

    def _resumed(self, run: Run, checkpoint: str | Path | None) -> Run:
        """Return the run of a checkpoint if there is one."""
        if checkpoint is not None and Path(checkpoint).exists():
            return Checkpoint.resume(checkpoint, run, self._identity())
        return run

    def _identity(self) -> dict[str, Any]:
        """Return what has to be the same for a training to go on from a checkpoint."""
        settings = {n: repr(v) for n, v in self._settings.items() if n not in SESSION}
        return {"learner": type(self).__name__, "environment": self._subject()} | settings


class StoredAgent(Agent):
    """An agent that can be saved, and whose information may have a budget."""

    @property
    @abstractmethod
    def information_(self) -> Information:
        """Bits that selector and experts process."""

    def _warn_of_missed_budgets(self) -> None:
        """Warn of a budget in bits that was missed by more than a twentieth, and by how much."""
        asked_for = {
            stage: self._settings[f"{stage}_bits"]
            for stage in ("selector", "expert")
            if self._settings[f"{stage}_bits"] is not None
        }
        for stage, asked in asked_for.items():
            information = self.information_
            bits = information.selectors[0] if stage == "selector" else information.experts
            if not abs(bits - asked) <= BUDGET_TOLERANCE * asked:
                why = " the stage has no use for more, or" if bits < asked else ""
                warnings.warn(
                    f"{type(self).__name__}: `{stage}_bits` is {asked:.3g}, but {bits:.3g} bits "
                    f"were reached:{why} learning was too short.",
                    stacklevel=3,
                )

    @abstractmethod
    def _to_file(self) -> tuple[dict[str, Any], PyTree]:
        """Return plain values that describe the agent, and the tree of what it has learned."""

    @classmethod
    @abstractmethod
    def _from_file(cls, meta: dict[str, Any], load: Callable[[PyTree], PyTree]) -> Any:
        """Build the agent from the plain values; `load` fills a tree of the same structure."""

    def save(self, path: str | Path) -> None:
        """Write what was learned to one file; `load` reads it back."""
        save_model(self, path)

    @classmethod
    def _read(cls, path: str | Path) -> Any:
        agent = load(path)
        if not isinstance(agent, cls):
            raise ValueError(f"{path} must hold a {cls.__name__}, but got {type(agent).__name__}.")
        return agent

    def _stored_settings(self) -> dict[str, Any]:
        """Return the settings as plain values for a file."""
        kept = {k: v for k, v in self._settings.items() if k not in SESSION}
        return kept | {name: check.stored(kept[name]) for name in BETAS}

    @staticmethod
    def _restored_settings(stored: dict[str, Any]) -> dict[str, Any]:
        """Return the settings from the plain values in a file."""
        betas = {name: check.restored(stored[name]) for name in BETAS}
        return {**stored, **betas, "tensorboard_log": None, "verbose": False}


def settings_of(arguments: dict[str, Any], *others: str) -> dict[str, Any]:
    """Return the arguments of a constructor that are settings: all but itself and `others`."""
    return {k: v for k, v in arguments.items() if k not in ("self", "__class__", *others)}


def in_replicas(number: int) -> Array:
    """Return a number of an iteration with the leading axis of replicas that a run has."""
    return jax.device_put(np.array([number], np.float32))


def _equal(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and bool(one == other))
