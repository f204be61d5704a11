"""Run experiments, piece by piece on all cores, and keep every finished piece."""

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from tqdm import tqdm

from pinfactory.sweep.fingerprint import dependencies
from pinfactory.sweep.futures import open_pool
from pinfactory.sweep.processes import ONE_THREAD, Reply, Workers
from pinfactory.sweep.running import Pool, progress_bar, work_off
from pinfactory.sweep.store import Store

from ._registry import Listing
from ._stamps import COMPUTES, stamps
from ._work import Finish, Piece, Plan, perform
from .experiment import Experiment, Measure
from .methods import Method, has_methods

Scale = Literal["quick", "paper"]


@dataclass(frozen=True)
class Outcome:
    """Outcome of one experiment."""

    name: str  #: the experiment
    measures: Sequence[Measure]  #: its numbers; none if it failed
    seconds: float  #: time that its pieces took, those of earlier runs included
    error: str = ""  #: what went wrong; empty if nothing did


def run(
    listings: Sequence[Listing],
    out: Path,
    *,
    scale: Scale = "quick",
    changes: Mapping[str, Any] | None = None,
    method: Method = "ours",
    jobs: int | None = None,
    scheduler: Any = None,
    progress: bool = True,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run experiments in several processes and write their files below `out`.

    For every experiment the folder `out`/NAME gets result.json, figure.svg, figure.png and the
    pieces; pieces that an earlier run has left there are not computed again. A piece that fails,
    or whose process dies, does not keep the others from running.

    Parameters
    ----------
    listings
        The experiments.
    out
        Folder for everything.
    scale
        Which preset of the settings.
    changes
        Settings in place of the preset's, such as the number of seeds.
    method
        Ours, the paper's to the letter, or both, where an experiment has both; else ours.
    jobs
        How many pieces run at a time; as many as there are cores by default. Experiments that
        measure time come last, one piece at a time.
    scheduler
        Where pieces run instead of local processes, as of `sweep`. Pieces that measure time run
        here, and so does what judges and draws.
    progress
        Whether to show a bar on stderr.
    report
        Called with every outcome as soon as there is one.
    """
    works = [_Work.plan(listing, out, scale, changes or {}, method) for listing in listings]
    together = [work for work in works if not work.alone]
    alone = [work for work in works if work.alone]
    total = sum(len(work.pieces) for work in works)
    done = total - sum(len(work.missing) for work in works)
    with progress_bar(total, done, "piece", progress) as bar:
        if together:
            with open_pool(
                perform,
                jobs=jobs,
                scheduler=scheduler,
                environment=ONE_THREAD | _shared_cache(out),
                here=lambda task: perform if isinstance(task, Finish) else None,
            ) as pool:
                _perform_all(together, pool, bar, report)
        with Workers(1, perform, ONE_THREAD | _NO_CACHE, pinned=True) as workers:
            _perform_all(alone, workers, bar, report)
    return [cast(Outcome, work.outcome) for work in works]


_NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "false"}


def _shared_cache(out: Path) -> dict[str, str]:
    """Let all processes share the programs that one has compiled; the user's own cache wins."""
    ours = {
        "JAX_COMPILATION_CACHE_DIR": str((out / ".jax_cache").absolute()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
    }
    return {name: os.environ.get(name, value) for name, value in ours.items()}


@dataclass
class _Work:
    """An experiment and what is still to be done for it."""

    plan_: Plan
    pieces: Mapping[str, Store]
    missing: list[str]
    alone: bool
    failures: list[Reply] = field(default_factory=list)
    outcome: Outcome | None = None

    @classmethod
    def plan(
        cls, listing: Listing, out: Path, scale: Scale, changes: Mapping[str, Any], method: Method
    ) -> "_Work":
        experiment = cast(Experiment, listing.experiment)
        more = {"method": method} if has_methods(experiment) else {}
        settings = getattr(experiment.Settings, scale)(**changes, **more)
        module = cast(str, experiment.__name__)  # type: ignore[attr-defined]
        libraries = dependencies(module, COMPUTES).libraries
        folder = out / listing.name
        plan = Plan(listing.name, module, listing.kind, scale, changes, settings, folder, libraries)
        pieces = {
            name: Store(folder / "pieces", stamp)
            for name, stamp in stamps(experiment, settings).items()
        }
        missing = [name for name, store in pieces.items() if store.piece(name) is None]
        return cls(plan, pieces, missing, getattr(experiment, "ALONE", False))

    def finish(self) -> Finish:
        """Return what remains to be done when no piece is missing any more."""
        traces = [f"{reply.task.name}: {reply.trace}" for reply in self.failures]
        return Finish(self.plan_, self.pieces, "\n".join(traces))

    def conclude(self, reply: Reply) -> Outcome:
        """Turn the reply to `finish` into the outcome."""
        error = self.failures[0].error if self.failures else reply.error
        # Where judging or drawing failed, that is what the result says.
        value = perform(replace(reply.task, error=reply.trace)) if reply.error else reply.value
        measures, seconds = value
        self.outcome = Outcome(self.plan_.name, measures, seconds, error)
        return self.outcome


def _perform_all(
    works: Sequence[_Work], pool: Pool, bar: tqdm, report: Callable[[Outcome], None]
) -> None:
    """Compute what is missing; judge and draw each experiment when its last piece is there."""
    queue = _Queue(works)

    def begun(task: Piece | Finish) -> None:
        bar.set_description_str(f"{task.plan.name:>20.20}")

    def note(reply: Reply) -> None:
        if isinstance(reply.task, Finish):
            with bar.external_write_mode():
                report(queue.works[reply.task.plan.name].conclude(reply))
        else:
            queue.note(reply)
            bar.update()

    work_off(queue, pool, bar, begun, note)


class _Queue:
    """What to do next.

    A process stays with an experiment: its pieces often share a program, which is compiled once.
    """

    def __init__(self, works: Sequence[_Work]) -> None:
        self.works = {work.plan_.name: work for work in works}
        self._pieces = {
            name: deque(Piece(work.plan_, piece) for piece in work.missing)
            for name, work in self.works.items()
        }
        self._finishes = deque(work.finish() for work in works if not work.missing)
        self._at: dict[int, str] = {}

    def __bool__(self) -> bool:
        return bool(self._finishes) or any(self._pieces.values())

    def next_for(self, slot: int) -> Piece | Finish | None:
        """Return a task for a process; None if there is none."""
        if self._finishes:
            return self._finishes.popleft()
        left = [name for name, pieces in self._pieces.items() if pieces]
        if not left:
            return None
        if self._at.get(slot) not in left:
            untouched = [name for name in left if name not in self._at.values()]
            # The next in order that no process works on, or the one with most pieces left.
            longest = max(left, key=lambda name: len(self._pieces[name]))
            self._at[slot] = untouched[0] if untouched else longest
        return self._pieces[self._at[slot]].popleft()

    def note(self, reply: Reply) -> None:
        """Store a piece that is done; take down that one has failed."""
        work = self.works[reply.task.plan.name]
        work.missing.remove(reply.task.name)
        if reply.error:
            work.failures.append(reply)
        else:
            work.pieces[reply.task.name].save(reply.task.name, reply.value)
        if not work.missing:
            self._finishes.append(work.finish())
