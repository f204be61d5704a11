"""What is learned batch by batch, from new rows and from some of the earlier ones."""

import math
from collections.abc import Sequence
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from sklearn.utils import check_random_state

from pinfactory.core.batches import Epochs
from pinfactory.core.hierarchy import pick, stack
from pinfactory.core.learning import State
from pinfactory.core.training import Run, Trained

from .fitting import CHUNK, Replica, Trainer
from .stream import Samples, Stream, fits
from .table import Table
from .table_learner import TableLearner

# The most passes over the rows that are kept of a stream, when all begins anew.
MOST_PASSES = 20


class OnlineLearner(TableLearner):
    """A table learner to which rows come in batches."""

    _stream: Stream

    def _fit_batch(self, batch: Samples) -> None:
        """Go on learning from a batch, and from rows of earlier ones."""
        samples, n_passes = self._next_samples(batch)
        # In the same unit as earlier batches: one that weighs more counts for more.
        unit = self._stream.mean_weight
        table = self._table(samples.X, self._targets(samples.y), samples.rows, unit)
        known = getattr(self, "state_", None)
        self._set_n_experts(known)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        replica = Replica(seed, self.n_experts_, *self._resources())
        if known is None:
            self._warn_of_price(replica.selector)
        # What rows of `fit` told is no longer true.
        self.__dict__.pop("rules_", None)
        self.gain_, n_iter = None, 0 if known is None else self.n_iter_
        trained = _fit_batch(self._trainer(), table, replica, known, n_iter, n_passes)
        self.state_, self.n_iter_ = pick(trained.run.state, 0), int(trained.run.step)
        read = partial(table.blocks, self._block)
        self._measure(read(), table)
        self._set_noise(read, len(table.x))

    def _next_samples(self, batch: Samples) -> tuple[Samples, int]:
        """Return a batch with rows of earlier ones, and how often all of them are to be seen.

        As many earlier rows as new ones are learned from once more. Where what has come so far is
        not of the size of the first batch, all begins anew in units that fit, with all rows that
        are kept and as many steps as were taken before.
        """
        known, stream = hasattr(self, "state_"), getattr(self, "_stream", None)
        # A copy, so that the rows of a batch are forgotten if learning from it fails.
        stream = Stream(batch, complete=not known) if stream is None else stream.copy()
        self._stream = stream
        earlier, drawn = stream.kept, stream.draw(len(batch.X))
        stream.add(batch)
        if known and not (stream.complete and self._is_out_of_scale(stream.kept)):
            return batch.join(drawn), 1
        samples, n_passes = batch.join(earlier), 1
        if known:
            del self.state_
            wanted = self.n_iter_ * self._trainer().batch_size(len(samples.X)) / len(samples.X)
            n_passes = min(math.ceil(wanted), MOST_PASSES)
        self._set_scales(samples, samples.rows)
        return samples, n_passes

    def _is_out_of_scale(self, samples: Samples) -> bool:
        return self.standardise and not fits(self.scaler_, samples.X, samples.weight)


def _fit_batch(
    trainer: Trainer,
    table: Table,
    replica: Replica,
    known: State | None,
    n_iter: int,
    n_passes: int,
) -> Trained[State]:
    """Go on learning, seeing each row so many times."""
    batch_size = trainer.batch_size(len(table.x))
    epochs = Epochs(len(table.x), batch_size)
    state = trainer.start([replica])[0] if known is None else trainer.proceed(known, replica)
    run = Run.start(jnp.stack([jax.random.key(replica.seed)]), stack([state]))
    run = eqx.tree_at(lambda r: r.step, run, jnp.asarray(n_iter))

    def batches(
        seeds: Sequence[Sequence[int]], start: int, n_steps: int
    ) -> Int[np.ndarray, "replicas steps batch"]:
        # The first epoch of these rows, whatever was seen before.
        return epochs(seeds, start - n_iter, n_steps)

    steps = n_iter - n_passes * (-len(table.x) // batch_size)
    data = table.padded()
    return trainer.train(trainer.learner, run, data, batches=batches, steps=steps, chunk=CHUNK)
