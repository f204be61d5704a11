"""Callbacks of training: progress bar, logs, checkpoints."""

import itertools
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
from tqdm.auto import tqdm

from pinfactory.core.training import (
    Callback,
    Callbacks,
    FunctionCallback,
    Progress,
    Run,
    as_callbacks,
)
from pinfactory.persistence import (
    MismatchError,
    fingerprint,
    load_tree,
    read_manifest,
    save_tree,
    to_json,
)


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
            total=total or None,
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

    A resumed run goes on with its log, less the rows after the step at which it resumes. The file
    is cut and appended to, never written anew, so that no row is lost whenever the process ends.
    A run that begins where there is a log keeps the other as `NAME.1.jsonl`, `NAME.2.jsonl`, ….
    Nothing of this happens before there is a row to write: a phase of a training that had ended
    leaves the rows of the next phase.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file: IO[bytes] | None = None

    def start(self, run: Run, total: int) -> None:
        self._begin, self._file = int(run.step), None

    def _open(self) -> IO[bytes]:
        """Return the file without the rows after the step at which the run begins."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._begin and self._length_until(math.inf):
            self._set_aside()
        length = self._length_until(self._begin)
        file: IO[bytes] = self.path.open("ab")
        file.truncate(length)
        return file

    def chunk(self, progress: Progress, run: Run) -> None:
        row: dict[str, Any] = {"step": progress.step, "seconds": progress.seconds}
        for name, values in scalars(progress):
            row[name] = [float(v) if math.isfinite(v) else None for v in values]
        self._file = self._file or self._open()
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()

    def _set_aside(self) -> None:
        """Give the log of another run another name."""
        names = (f"{self.path.stem}.{n}{self.path.suffix}" for n in itertools.count(1))
        free = (path for path in map(self.path.with_name, names) if not path.exists())
        self.path.rename(next(free))

    def _length_until(self, step: float | int) -> int:
        """Return how many bytes of the file are whole rows up to a step."""
        length = 0
        if self.path.exists():
            for line in self.path.read_bytes().splitlines(keepends=True):
                if not _is_row_until(line, step):
                    break
                length += len(line)
        return length


def _is_row_until(line: bytes, step: float | int) -> bool:
    try:
        # The last line of a run that was killed may be incomplete.
        return line.endswith(b"\n") and json.loads(line)["step"] <= step
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


class TensorBoard(Callback):
    """TensorBoard event files, one run directory for each replica.

    They are on the disk after every chunk. TensorBoard leaves out what an earlier process has
    written of steps after the one at which a run resumes.
    """

    def __init__(self, directory: str | Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard logs need another package: pip install 'pinfactory[tensorboard]'"
            ) from error
        self.directory = Path(directory)
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter
        self._session = SessionLog

    def start(self, run: Run, total: int) -> None:
        n_replicas = len(run.key)
        names = [""] if n_replicas == 1 else [f"replica_{i}" for i in range(n_replicas)]
        self._writers = [self._writer(str(self.directory / name)) for name in names]
        self._begin = int(run.step)

    def chunk(self, progress: Progress, run: Run) -> None:
        if self._begin:
            begins = self._session(status=self._session.START)
            self._write(self._begin + 1, [{"session_log": begins}] * len(self._writers))
            self._begin = 0
        named = list(scalars(progress))
        summaries = [
            self._summary(
                value=[
                    self._summary.Value(tag=name, simple_value=float(values[replica]))
                    for name, values in named
                    if not math.isnan(values[replica])  # missing, such as returns of no episode
                ]
            )
            for replica in range(len(self._writers))
        ]
        self._write(progress.step, [{"summary": summary} for summary in summaries])

    def _write(self, step: int, contents: Sequence[Mapping[str, Any]]) -> None:
        """Write an event of every replica."""
        for writer, content in zip(self._writers, contents, strict=True):
            writer.add_event(self._event(wall_time=time.time(), step=step, **content))
            writer.flush()  # before a checkpoint goes beyond it

    def finish(self) -> None:
        for writer in self._writers:
            writer.close()


class Checkpoint(Callback):
    """Write the whole run to one file every `every` chunks and when training ends.

    Parameters
    ----------
    path
        The file.
    every
        Chunks between two writes.
    identity
        The settings and data that the run belongs to: a flat mapping of names to plain values, with
        a `fingerprint` in place of arrays. `resume` refuses another run by what differs. The number
        of steps is no part of it, so that a run that is asked for more goes on.
    """

    KIND = "checkpoint"

    def __init__(
        self, path: str | Path, every: int = 1, *, identity: Mapping[str, Any] | None = None
    ) -> None:
        self.path, self.every = Path(path), every
        self.identity = None if identity is None else dict(identity)

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
        save_tree(self.path, self._unsaved, kind=self.KIND, meta={"identity": self.identity})
        self._unsaved = None

    @classmethod
    def resume(cls, path: str | Path, like: Run, identity: Mapping[str, Any] | None = None) -> Run:
        """Return the run saved at `path`.

        Parameters
        ----------
        path
            The file.
        like
            The fresh run that it began as.
        identity
            The settings and data of this run; without it, those of the file are not looked at.

        Raises
        ------
        MismatchError
            If the file belongs to a run with other settings or data.
        """
        if identity is not None:
            _check_identity(path, read_manifest(path).meta.get("identity"), identity)
        return load_tree(path, like, kind=cls.KIND)


def _check_identity(path: str | Path, stored: Any, mine: Mapping[str, Any]) -> None:
    """Raise an error that names what differs between a checkpoint's run and this one."""
    if not isinstance(stored, Mapping):
        raise MismatchError(
            f"{path} must say which run it belongs to, but it does not; remove the file, or resume "
            "without an identity"
        )
    names = [
        name
        for name in dict.fromkeys([*mine, *stored])
        if to_json(stored.get(name)) != to_json(mine.get(name))
    ]
    if names:
        theirs, ours = (
            ", ".join(f"{name} {values.get(name)!r}" for name in names) for values in (stored, mine)
        )
        raise MismatchError(
            f"{path} must be a checkpoint of this run: it belongs to {theirs}, but this run has "
            f"{ours}; remove the file or name another"
        )


__all__ = [
    "Callback",
    "Callbacks",
    "Checkpoint",
    "FunctionCallback",
    "JsonLines",
    "ProgressBar",
    "TensorBoard",
    "as_callbacks",
    "fingerprint",
]
