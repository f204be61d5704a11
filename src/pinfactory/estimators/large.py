"""A table learner whose samples need not fit into memory: it learns from some, then from all."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from sklearn.base import is_classifier
from sklearn.utils import check_random_state

from pinfactory import settings as check
from pinfactory.callbacks import fingerprint
from pinfactory.core.hierarchy import pick
from pinfactory.core.learning import State
from pinfactory.core.training import TrainingInterrupted
from pinfactory.tables import as_frame

from .chunked import Chunks, Part, with_targets
from .drawn import Drawn, draw
from .fitting import Replica
from .online import OnlineLearner
from .passes import AllRows, Feed, learn_from_all
from .stream import Samples
from .table import MOST_JUDGED, Reach, Table
from .table_learner import ReadBlocks


class LargeLearner(OnlineLearner):
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
            settings: dict[str, Any] = {**training, "warm": warm}
            judging, learning = None, drawn
            if not drawn.is_complete:
                share = self.validation_fraction
                check.number("validation_fraction", share, 0.0, 0.9, open_low=True)
                judging, learning = drawn.set_aside(share, MOST_JUDGED)
            samples = self._samples(
                learning.rows.X,
                learning.rows.y,
                learning.weights(),
                reset=not warm,
                counts=drawn.counts,
            )
            if hasattr(self, "encoding_") and not warm:
                self.target_name_ = y if isinstance(y, str) else str(getattr(y, "name", None) or "")
            if judging is not None:
                further = partial(self._go_on, chunks, judging, samples, training)
                settings |= {"further": further, "phase": "sample"}
            del drawn, learning  # frames, of which numbers were made
            self._fit_samples(samples, **settings)

    def _go_on(
        self,
        chunks: Chunks,
        judging: Drawn,
        samples: Samples,
        training: dict[str, Any],
        state: State,
        table: Table,
        middle: Reach,
    ) -> tuple[State, ReadBlocks]:
        """Learn from all rows what is better on rows set aside than what a sample told.

        Returns
        -------
        The best state, and what reads all rows: those of the sample after Ctrl-C.
        """
        in_memory = partial(table.blocks, self._block)
        if "_stop" in vars(self):
            return state, in_memory
        rows = AllRows(self, chunks, middle, judging.counts)
        checksum = f"{judging.checksum:016x} of {judging.n}"
        identity = {"data": fingerprint(*table), "all_rows": checksum}
        trainer = self._trainer(identity=identity, **training)
        feed = Feed(rows, samples, judging, trainer.batch_size(judging.n), self.n_iter_)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        replica = Replica(seed, self.n_experts_, *self._resources())
        judged = rows.table(rows.near(judging.rows))
        try:
            trained = learn_from_all(trainer, feed, state, replica, table, judged)
        except TrainingInterrupted as stop:
            # Before the first block was done: the sample has told all that is known.
            self._stop = stop
            return state, in_memory
        self.n_iter_, self.history_ = int(trained.run.step), self.history_ + trained.history
        best = pick(trainer.result(trained, table).states, 0)
        stopped = "_stop" in vars(self)
        return best, in_memory if stopped else partial(rows.blocks, self._block)

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
