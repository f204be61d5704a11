"""A table learner whose samples need not fit into memory: it learns from some, then from all."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from pinfactory.callbacks import fingerprint
from pinfactory.core.hierarchy import pick
from pinfactory.core.learning import State
from pinfactory.core.training import TrainingInterrupted
from pinfactory.tables import as_frame

from .chunked import Chunks, Part, with_targets
from .drawn import Drawn, draw
from .fitting import Replica
from .passes import AllRows, Feed, learn_from_all
from .table import MOST_JUDGED, Reach, Table
from .table_learner import ReadBlocks, TableLearner


class LargeLearner(TableLearner):
    """A selector and simple experts, trained on samples in memory or in chunks."""

    def _fit(self, X: Any, y: Any, sample_weight: Any, **training: Any) -> None:
        """Train on samples in memory, or on those that are read in chunks."""
        with self._learning():
            warm, chunks = self._is_warm(), with_targets(X, y)
            if chunks is None:
                samples = self._samples(X, y, sample_weight, reset=not warm)
                self._fit_samples(samples, warm=warm, **training)
                return
            if sample_weight is not None:
                raise ValueError("`sample_weight` must be None for data that are read in chunks.")
            drawn = draw(chunks, classify=is_classifier(self))
            if drawn.is_complete:
                samples = self._samples(drawn.rows.X, drawn.rows.y, None, reset=not warm)
                self._fit_samples(samples, warm=warm, **training)
            else:
                self._fit_chunks(chunks, drawn, warm=warm, **training)
            if hasattr(self, "encoding_") and not warm:
                self.target_name_ = y if isinstance(y, str) else str(getattr(y, "name", None) or "")

    def _parts(self, chunks: Chunks) -> Iterator[Any]:
        """Return chunks of samples, of which other columns than those of `fit` are left out."""
        names = getattr(self, "feature_names_in_", ())
        for part in chunks.read():
            frame = as_frame(part)
            if frame is not None and hasattr(self, "encoding_"):
                part = frame.select([n for n in names if n in frame.columns]).to_native()
            if len(part):
                yield part

    def _scored(self, X: Any, y: Any, sample_weight: Any) -> Iterator[Part] | None:
        """Return predictions and targets of samples that are read in chunks, part by part."""
        if (chunks := with_targets(X, y)) is None:
            return None
        if sample_weight is not None:
            raise ValueError("`sample_weight` must be None for data that are read in chunks.")
        parts = (part for part in chunks.read() if len(part))
        return (Part(self.predict(part.X), part.y) for part in parts)

    def _fit_chunks(self, chunks: Chunks, drawn: Drawn, *, warm: bool, **training: Any) -> None:
        """Train on a sample, go on with all rows, and keep what is better on rows set aside."""
        judging, learning = drawn.set_aside(self.validation_fraction, MOST_JUDGED)
        weight, counts = learning.weights(), drawn.counts
        part = learning.rows
        samples = self._samples(part.X, part.y, weight, reset=not warm, counts=counts)

        def further(state: State, table: Table, middle: Reach) -> tuple[State, ReadBlocks]:
            if "_stop" in vars(self):  # Ctrl-C
                return state, partial(table.blocks, self._block)
            rows = AllRows(self, chunks, middle, counts)
            judged = rows.table(rows.near(judging.rows))
            trainer = self._trainer(
                identity={"data": fingerprint(*table), "rows": drawn.n}, **training
            )
            codes = np.concatenate(judging.codes)
            batch_size = trainer.batch_size(drawn.n)
            feed = Feed(rows, samples, codes, drawn.n - len(judging), batch_size, self.n_iter_)
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            replica = Replica(seed, self.n_experts_, *self._resources())
            try:
                trained = learn_from_all(trainer, feed, state, replica, table, judged)
            except TrainingInterrupted as stop:
                self._stop = stop
                return state, partial(table.blocks, self._block)
            self.n_iter_, self.history_ = int(trained.run.step), self.history_ + trained.history
            best = pick(trainer.result(trained, table).states, 0)
            in_memory = "_stop" in vars(self)
            return best, partial((table if in_memory else rows).blocks, self._block)

        self._fit_samples(samples, warm=warm, further=further, **training, phase="sample")
