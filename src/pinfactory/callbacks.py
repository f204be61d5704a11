"""Things that watch training: progress bar, logs, checkpoints."""

import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from tqdm.auto import tqdm

from pinfactory.core.training import Callback, Progress, Run
from pinfactory.persistence import load_tree, save_tree


def scalars(progress: Progress) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values (one per replica) of everything a chunk reports."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(progress.info):
        yield jax.tree_util.keystr(path, simple=True, separator="/"), np.atleast_1d(leaf)
    if progress.score is not None:
        yield "score", np.atleast_1d(progress.score)


class ProgressBar(Callback):
    """A bar on standard error with the mean objective of all replicas."""

    def __init__(self, description: str = "training", unit: str = "step") -> None:
        self.description, self.unit = description, unit

    def start(self, run: Run, total: int) -> None:
        self._bar = tqdm(
            total=total,
            initial=int(run.step),
            desc=self.description,
            unit=self.unit,
            unit_scale=True,
            dynamic_ncols=True,
        )

    def chunk(self, progress: Progress, run: Run) -> None:
        values = dict(scalars(progress))
        shown = {k: f"{np.mean(v):.3g}" for k, v in values.items() if k in ("objective", "score")}
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(progress.step - self._bar.n)

    def finish(self) -> None:
        self._bar.close()


class JsonLines(Callback):
    """One JSON object per chunk: the step and, for every quantity, its value in each replica.

    A resumed run goes on with its log, less the rows after the step at which it resumes.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def start(self, run: Run, total: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = self._rows_until(int(run.step))
        self._file: IO[str] = self.path.open("w", encoding="utf-8")
        self._file.writelines(kept)

    def chunk(self, progress: Progress, run: Run) -> None:
        row: dict[str, Any] = {"step": progress.step, "seconds": progress.seconds}
        for name, values in scalars(progress):
            row[name] = [float(v) if math.isfinite(v) else None for v in values]
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def finish(self) -> None:
        self._file.close()

    def _rows_until(self, step: int) -> list[str]:
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        # The last line of a run that was killed may be incomplete.
        return [s for s in lines if s.endswith("\n") and json.loads(s)["step"] <= step]


class TensorBoard(Callback):
    """TensorBoard event files, one run directory for each replica."""

    def __init__(self, directory: str | Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard logs need another package: pip install 'pinfactory[tensorboard]'"
            ) from error
        self.directory = Path(directory)
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter

    def start(self, run: Run, total: int) -> None:
        n_replicas = len(run.key)
        names = [""] if n_replicas == 1 else [f"replica_{i}" for i in range(n_replicas)]
        self._writers = [self._writer(str(self.directory / name)) for name in names]

    def chunk(self, progress: Progress, run: Run) -> None:
        named = list(scalars(progress))
        for replica, writer in enumerate(self._writers):
            summary = self._summary(
                value=[
                    self._summary.Value(tag=name, simple_value=float(values[replica]))
                    for name, values in named
                ]
            )
            event = self._event(wall_time=time.time(), step=progress.step, summary=summary)
            writer.add_event(event)

    def finish(self) -> None:
        for writer in self._writers:
            writer.close()


class Checkpoint(Callback):
    """Write the whole run to one file every `every` chunks and when training ends."""

    KIND = "checkpoint"

    def __init__(self, path: str | Path, every: int = 1) -> None:
        self.path, self.every = Path(path), every

    def start(self, run: Run, total: int) -> None:
        self._chunks = 0
        self._unsaved: Run | None = None

    def chunk(self, progress: Progress, run: Run) -> None:
        self._chunks += 1
        self._unsaved = run
        if self._chunks % self.every == 0:
            self._save()

    def finish(self) -> None:
        if self._unsaved is not None:
            self._save()

    def _save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_tree(self.path, self._unsaved, kind=self.KIND)
        self._unsaved = None

    @classmethod
    def resume(cls, path: str | Path, like: Run) -> Run:
        """Return the run saved at `path`; `like` is the fresh run it began as."""
        return load_tree(path, like, kind=cls.KIND)


__all__ = ["Callback", "Checkpoint", "JsonLines", "ProgressBar", "TensorBoard"]
