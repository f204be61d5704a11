"""What agents add to `pinfactory.base.Learnable`: runs that go on, logs, budgets, files."""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from pinfactory import settings as check
from pinfactory.base import Learnable, all_or_nothing
from pinfactory.callbacks import Callbacks, JsonLines, ProgressBar, TensorBoard, as_callbacks
from pinfactory.core.compiling import with_library_settings
from pinfactory.core.failures import NonFiniteError
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.information import Information
from pinfactory.core.training import Progress, Run, Steps

from .callbacks import Reports

RESOURCES = """beta_selector, beta_expert
        β₁ and β₂: a number or a `pinfactory.Scheduled`, whose steps are gradient steps.
    selector_bits, expert_bits
        Budgets in bits, in place of β₁ and β₂. `learn` warns if it missed one by more than 5 %.
    momentum_selector, momentum_expert
        Momentum of the running priors p(m) and p(a|m), per update."""
LOGS = """tensorboard_log
        Directory for TensorBoard's event files and a `progress.jsonl`.
    verbose
        Whether to show a progress bar.
    seed
        Seed of all random numbers."""
CAPACITY_AND_LOGS = f"""capacity
        Room for experts in the arrays; agents of the same capacity share one compiled program.
    {LOGS}"""

TRAINING = """callbacks
            A `Callback`, a function of the progress that returns True to stop, several of them,
            or None.
        progress_bar
            Whether to show one.
        checkpoint
            A file that keeps the state of training. If it exists, training goes on from there to
            the end it was meant for, exactly as if it had not stopped"""


class Agent(Learnable):
    """A learner that acts. It is built with its settings, and every `learn` goes on.

    Attributes
    ----------
    history_ : list of Progress
        What `learn` reported.
    """

    history_: list[Progress]
    _run: Run | None
    _may_differ = ("env", "params", "family", "tensorboard_log", "verbose")

    @property
    @abstractmethod
    def num_timesteps(self) -> int:
        """Environment steps taken."""

    @abstractmethod
    def _subject(self) -> dict[str, str]:
        """Return what the agent learns in, as a checkpoint names it."""

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the settings and build what they describe."""

    def set_params(self, **params: Any) -> "Agent":
        """Change settings of an agent that has not learned yet; a wrong one changes nothing."""
        if params and self.num_timesteps:
            raise ValueError(
                f"The settings of a {type(self).__name__} must be set before it learns; "
                "sklearn.base.clone makes another one that has not."
            )
        with all_or_nothing(self):
            super().set_params(**params)
            self.__post_init__()
        return self

    def _start_run(self, state: PyTree, iteration: Array | int = 0) -> Run:
        """Return a run that begins with the given state at an iteration."""
        run = Run.start(jnp.stack([jax.random.key(self.seed)]), stack([state]))
        return eqx.tree_at(lambda r: r.step, run, jnp.asarray(int(iteration)))

    def _go_on(
        self,
        learner: Steps,
        run: Run,
        data: Any,
        *,
        last: int,
        unit: int = 1,
        every: int = 1,
        callbacks: Callbacks = None,
        progress_bar: bool = False,
        checkpoint: str | Path | None = None,
        **options: Any,
    ) -> None:
        """Train to the iteration `last`, and keep the run, whatever happens.

        A report is an average over `every` chunks, in whose iterations `unit` steps each are
        counted. Other options are those of `pinfactory.core.training.train`.
        """
        reported = as_callbacks(self.history_.append)
        if progress_bar or self.verbose:
            name = " steps" if unit > 1 else " iterations"
            reported.append(ProgressBar(type(self).__name__, unit=name))
        if (directory := self.tensorboard_log) is not None:
            reported += [TensorBoard(directory), JsonLines(Path(directory) / "progress.jsonl")]
        reported += as_callbacks(callbacks)

        with self._keeping():
            try:
                self._run = self._train(
                    learner,
                    run,
                    data,
                    callbacks=Reports(self, reported, unit, every),
                    checkpoint=checkpoint,
                    identity=self._subject() if checkpoint else None,
                    steps=last,
                    every=every,
                    verbose=False,  # its bar counts chunks
                    **options,
                ).run
            except NonFiniteError as error:
                self._run = error.run
                raise


@dataclass(kw_only=True, eq=False, repr=False)
class HierarchicalAgent(Agent):
    """The settings that all agents with a selector and experts have, their state and files."""

    expert_hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (32, 32)
    beta_selector: check.Beta = 25.0
    beta_expert: check.Beta = 2.5
    selector_bits: float | None = None
    expert_bits: float | None = None
    momentum_selector: float = 0.9
    momentum_expert: float = 0.9
    learning_rate: float = 2e-3
    batch_size: int | None = 512
    n_epochs: int = 8
    n_steps: int = 64
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    update: str = "clipped"
    capacity: int | None = None
    tensorboard_log: str | Path | None = None
    verbose: bool = False
    seed: int = 0

    def _start(self) -> None:
        """Check the numbers that everything depends on; begin with nothing learned."""
        for name in ("n_experts", "n_steps"):
            check.integer(name, getattr(self, name), 1)
        check.integer("seed", self.seed, 0, most=2**32 - 1)
        self.history_ = []
        self._run = None
        self._initial: Any = None
        self._evaluations = 0

    @abstractmethod
    def _first_run(self) -> Run:
        """Return a run that begins with the initial state."""

    @abstractmethod
    def _measured_information(self) -> Information:
        """Return the bits that selector and experts process."""

    @property
    def state_(self) -> Any:
        """All that has been learned."""
        return self._initial if self._run is None else agent_of(pick(self._run.state, 0))

    @property
    @with_library_settings
    def information_(self) -> Information:
        """Bits that selector and experts process.

        I(·;M) of the selector, I(S;A|M) of the experts; for box actions the latter is relative to
        a Gaussian prior, an upper bound.
        """
        if not int(self.state_.iteration):
            raise AttributeError(
                f"This {type(self).__name__} has no `information_` before it has learned."
            )
        return self._measured_information()

    def prepared_run(self, n_iterations: int) -> Run:
        """Return the run that `learn` goes on with; learning rates fall until its end."""
        run = self._first_run() if self._run is None else self._run
        first = int(run.step)
        # With the leading axis of replicas that a run has.
        ends = (np.array([n], np.float32) for n in (first, first + n_iterations))
        return eqx.tree_at(self._span, run, tuple(map(jax.device_put, ends)))

    def _as_asked(self, found: Run, asked: Run) -> Run:
        return eqx.tree_at(self._span, found, self._span(asked))

    def _span(self, run: Run) -> Any:
        """Return the first and the last iteration of a run, between which rates fall."""
        hyper = agent_of(run.state).hyper
        return hyper.first_iteration, hyper.last_iteration

    def _stored_settings(self) -> dict[str, Any]:
        """Return the settings as plain values for a file."""
        settings = self.get_params(deep=False).items()
        return {name: check.stored(v) for name, v in settings if name not in self._may_differ}

    @staticmethod
    def _restored_settings(stored: dict[str, Any]) -> dict[str, Any]:
        """Return the settings from the plain values in a file."""
        return {name: check.restored(value) for name, value in stored.items()}


def agent_of(state: Any) -> Any:
    """Return the agent in what a run keeps: it alone, or it and the state of its environments."""
    return state[0] if isinstance(state, tuple) else state
