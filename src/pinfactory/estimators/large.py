"""Samples that need not fit into memory: a table learner learns from some, then from all."""

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

from .chunked import Chunks, Part, refuse_weights, with_targets
from .drawn import Drawn, draw
from .fitting import Replica
from .passes import AllRows, Feed, learn_from_all
from .stream import Samples
from .table import MOST_JUDGED, Reach, Table
from .table_learner import ReadBlocks, TableLearner


def fit_chunks(
    learner: TableLearner, chunks: Chunks, y: Any, *, warm: bool, **training: Any
) -> None:
    """Train on a sample of the rows, and then on all of them if there are more."""
    drawn = draw(chunks, classify=is_classifier(learner))
    settings: dict[str, Any] = {**training, "warm": warm}
    judging, learning = None, drawn
    if not drawn.is_complete:
        share = learner.validation_fraction
        check.number("validation_fraction", share, 0.0, 0.9, open_low=True)
        judging, learning = drawn.set_aside(share, MOST_JUDGED)
    samples = learner._samples(
        learning.rows.X,
        learning.rows.y,
        learning.weights(),
        reset=not warm,
        counts=drawn.counts,
    )
    if hasattr(learner, "encoding_") and not warm:
        learner.target_name_ = y if isinstance(y, str) else str(getattr(y, "name", None) or "")
    if judging is not None:
        further = partial(_go_on, learner, chunks, judging, samples, training)
        settings |= {"further": further, "phase": "sample"}
    del drawn, learning  # frames, of which numbers were made
    learner._fit_samples(samples, **settings)


def _go_on(
    learner: TableLearner,
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
    in_memory = partial(table.blocks, learner._block)
    if "_stop" in vars(learner):
        return state, in_memory
    rows = AllRows(learner, chunks, middle, judging.counts)
    checksum = f"{judging.checksum:016x} of {judging.n}"
    identity = {"data": fingerprint(*table), "all_rows": checksum}
    trainer = learner._trainer(identity=identity, **training)
    feed = Feed(rows, samples, judging, trainer.batch_size(judging.n), learner.n_iter_)
    seed = int(check_random_state(learner.random_state).randint(2**31 - 1))
    replica = Replica(seed, learner.n_experts_, *learner._resources())
    judged = rows.table(rows.near(judging.rows))
    try:
        trained = learn_from_all(trainer, feed, state, replica, table, judged)
    except TrainingInterrupted as stop:
        # Before the first block was done: the sample has told all that is known.
        learner._stop = stop
        return state, in_memory
    learner.n_iter_, learner.history_ = (
        int(trained.run.step),
        learner.history_ + trained.history,
    )
    best = pick(trainer.result(trained, table).states, 0)
    stopped = "_stop" in vars(learner)
    return best, in_memory if stopped else partial(rows.blocks, learner._block)


def known_columns(learner: TableLearner, chunks: Chunks) -> Iterator[Any]:
    """Return chunks of samples, of which other columns than those of `fit` are left out."""
    names = getattr(learner, "feature_names_in_", ())
    for part in chunks.read():
        frame = as_frame(part)
        if frame is not None and hasattr(learner, "encoding_"):
            part = frame.select([n for n in names if n in frame.columns]).to_native()
        if len(part):
            yield part


def answered(learner: Any, X: Any, y: Any, sample_weight: Any) -> Iterator[Part] | None:
    """Return predictions and targets of samples that are read in chunks, part by part."""
    if (chunks := with_targets(X, y)) is None:
        return None
    refuse_weights(sample_weight)
    parts = (part for part in chunks.read() if len(part))
    return (Part(learner.predict(part.X), part.y) for part in parts)
