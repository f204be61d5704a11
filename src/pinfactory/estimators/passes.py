"""How a committee that knows a sample goes on with all rows, which are read in chunks."""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pinfactory.core.batches import Epochs
from pinfactory.core.hierarchy import stack
from pinfactory.core.learning import Data, State
from pinfactory.core.training import Run, Trained
from pinfactory.tables import FAR

from . import chunked
from .chunked import Chunks, Part
from .drawn import Codes, Counts, Drawn, row_codes
from .fitting import Replica, Trainer, held_out_scores
from .linear_tree import accepts_leaves
from .stream import Samples
from .table import MOST_RANGED, Reach, Table
from .table_learner import TableLearner


@dataclass(frozen=True)
class AllRows:
    """All rows but outliers, as numbers, chunk by chunk, as often as they are asked for."""

    learner: TableLearner  # knows how columns become numbers
    chunks: Chunks
    middle: Reach  # by which outliers are known
    counts: Counts | None  # of all classes

    def near(self, part: Part, skipped: Codes | None = None) -> Samples:
        """Return the samples of a chunk that are no outliers, and not skipped."""
        with warnings.catch_warnings():
            # Values that are in no row of the sample are rare.
            warnings.filterwarnings("ignore", "not seen in fit")
            samples = self.learner._samples(part.X, part.y, None, reset=False, counts=self.counts)
        kept = self.middle.distance(samples.X, samples.rows) <= FAR
        if skipped is not None:
            kept &= np.isin(row_codes(part.X), skipped, invert=True)
        return samples if kept.all() else samples.take(np.flatnonzero(kept))

    def read(self, skipped: Codes | None = None) -> Iterator[Samples]:
        """Return the samples of all chunks."""
        parts = (self.near(part, skipped) for part in self.chunks.read() if len(part))
        return (samples for samples in parts if len(samples.X))

    def table(self, samples: Samples) -> Table:
        """Return samples as the committee learns from them, with the weights that they have."""
        targets = self.learner._targets(samples.y)
        table = self.learner._table(samples.X, targets, samples.rows)
        return table._replace(weight=samples.weight.astype(np.float32))

    def blocks(self, length: int) -> Iterator[Data]:
        """Return all rows in parts of at most `length`."""
        for samples in self.read():
            yield from self.table(samples).blocks(length)


class Feed:
    """What is learned from block by block: new rows, and as many of a sample of all rows.

    What is learned last would count most where rows come in an order. After the last row the first
    ones fill the last block.

    Parameters
    ----------
    rows
        All rows.
    sample
        Rows of the sample.
    judging
        Rows that are not learned from.
    batch_size
        Rows of a step.
    first_step
        The step before which the first block begins.
    """

    def __init__(
        self, rows: AllRows, sample: Samples, judging: Drawn, batch_size: int, first_step: int
    ) -> None:
        self.rows, self.sample = rows, sample
        self.skipped, n_rows = np.concatenate(judging.codes), judging.n - len(judging)
        self.batch_size, self.first_step = batch_size, first_step
        # The same whatever there is to read: another length is another program.
        self._length = min(chunked.CHUNK, max(len(sample.X) // 4, 1))
        self.n_blocks = math.ceil(n_rows / self._length)
        self.n_steps = math.ceil(2 * self._length / batch_size)  # of a block
        self._tables, self._number = self._read(), -1
        self._table: Table | None = None

    @property
    def last_step(self) -> int:
        """Return the step after which all rows have been learned from."""
        return self.first_step + self.n_blocks * self.n_steps

    def data(self, run: Run) -> Data:
        """Return the rows of the next block."""
        return self._at(self._block(int(run.step))).padded()

    def batches(
        self, seeds: Sequence[Sequence[int]], start: int, n_steps: int
    ) -> Int[np.ndarray, "replicas steps batch"]:
        """Choose rows of a block, each once."""
        number = self._block(start)
        own = [[*seed, number] for seed in seeds]
        return Epochs(len(self._at(number).x), self.batch_size)(own, 0, n_steps)

    def _block(self, step: int) -> int:
        return (step - self.first_step) // self.n_steps

    def _at(self, number: int) -> Table:
        """Return a block; those before it are passed over where a checkpoint goes on."""
        while self._table is None or self._number < number:
            self._table, self._number = next(self._tables), self._number + 1
        return self._table

    def _read(self) -> Iterator[Table]:
        for number, new in enumerate(_in_blocks(self._endless(), self._length)):
            random = np.random.default_rng(number)
            known = self.sample.take(random.integers(len(self.sample.X), size=len(new.X)))
            yield self.rows.table(new.join(known))

    def _endless(self) -> Iterator[Samples]:
        while True:
            samples = None
            for samples in self.rows.read(self.skipped):
                yield samples
            if samples is None:
                raise ValueError("Chunks must be there each time they are read, but got none.")


def _in_blocks(stream: Iterator[Samples], length: int) -> Iterator[Samples]:
    """Return samples in blocks of one length."""
    held: list[Samples] = []
    for samples in stream:
        held.append(samples)
        while sum(len(each.X) for each in held) >= length:
            joined = reduce(Samples.join, held)
            yield joined.take(np.s_[:length])
            held = [joined.take(np.s_[length:])]


def learn_from_all(
    trainer: Trainer, feed: Feed, known: State, replica: Replica, table: Table, judged: Table
) -> Trained[State]:
    """Go on learning from all rows, and keep the best state by rows that are not among them.

    That is the known one if nothing is better. `table` holds the sample.
    """
    key = jnp.stack([jax.random.key(replica.seed)])
    run = Run.start(key, stack([trainer.proceed(known, replica)]), keep_best=True)
    evaluate = partial(
        held_out_scores,
        trainer.problem.judge,
        judged=judged.padded(),
        together=None,
        line=_errors_of_line(trainer, table, judged),
    )
    assert run.best is not None
    run = eqx.tree_at(
        lambda r: (r.step, r.best),
        run,
        (jnp.asarray(feed.first_step), run.best.update(evaluate(run.state), run.state)),
    )
    return trainer.train(
        trainer.learner,
        run,
        feed.data,
        batches=feed.batches,
        steps=feed.last_step,
        chunk=feed.n_steps,
        evaluate=evaluate,
    )


def _errors_of_line(trainer: Trainer, table: Table, judged: Table) -> Float[Array, " rows"] | None:
    """Return the squared errors of one regression, beyond which errors are a loss."""
    expert = trainer.problem.expert(jax.random.key(0))
    if trainer.problem.judge.error is None or not accepts_leaves(expert):
        return None
    rows = np.arange(min(len(table.x), MOST_RANGED))
    line = trainer.problem.grow(table, n_leaves=1, rows=rows)
    squares = np.sum(line.errors_of_root(judged) ** 2, axis=1)
    data = judged._replace(y=squares.astype(np.float32)).padded()
    return data.y
