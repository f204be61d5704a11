"""How a committee learns from a table: restarts side by side, and when to stop."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, validate_data

from pinfactory import settings as check
from pinfactory.callbacks import ProgressBar
from pinfactory.core.batches import Epochs
from pinfactory.core.compiling import compiled
from pinfactory.core.hierarchy import Hierarchy, pick, stack
from pinfactory.core.learning import Data, Learner, LearnerState
from pinfactory.core.resources import Fixed
from pinfactory.core.training import Callback, Run, Trained, train

from ._blueprint import Blueprint, Replica
from ._rows import Rows, distinct
from ._table import RowBatches, Table, Validation

# Steps between two looks at the validation rows; fixed, because it is part of a compiled shape.
CHUNK = 100
# … and if there are none, long enough that the return to Python costs nothing.
UNCHECKED_CHUNK = 2500
# As many as there are restarts by default: both are then one compiled program.
FOLDS = 5
# Fewer rows are too few to judge by. From so many rows on a part of them is enough to judge by.
FEWEST_FOLDED, MOST_FOLDED = 40, 10_000
# Farther than this from the mean, in deviations, is as good as infinite: squares stay finite.
FARTHEST = 1e9

ScoreRows = Callable[[Hierarchy, Data], Float[Array, " n"]]


class Fitting(Blueprint):
    """Learning from a whole table, or from one batch after the other."""

    state_: LearnerState
    n_experts_: int
    n_iter_: int

    @abstractmethod
    def _score_function(self) -> ScoreRows:
        """Return how good the committee's answer is for each row of a validation set."""

    @abstractmethod
    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Return what the experts are to answer, in their own units."""

    @abstractmethod
    def _measure(self, table: Table) -> None:
        """Measure what the trained committee does with the training data."""

    def _shuffled(self, table: Table, random: np.random.Generator) -> np.ndarray:
        """Return an order of the rows, any part of which stands for all."""
        return random.permutation(len(table.x))

    # ------------------------------------------------------------------------ from data to a table

    def _checked(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return checked samples, targets and weights."""
        X, y = validate_data(
            self,
            X,
            y,
            reset=reset,
            dtype=np.float64,
            multi_output=self._numeric,
            y_numeric=self._numeric,
        )
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weight.any():
            raise ValueError("`sample_weight` must hold a weight above zero, but got only zeros.")
        return X, y, weight

    def _set_scales(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> None:
        """Take mean and deviation of the inputs, which standardise them from now on."""
        self.scaler_ = StandardScaler()
        for part in rows.parts():
            self.scaler_.partial_fit(X[part.position], sample_weight=part.weight)

    def _scaled(self, X: np.ndarray) -> np.ndarray:
        distance = (X - self.scaler_.mean_) / self.scaler_.scale_
        return np.clip(distance, -FARTHEST, FARTHEST).astype(np.float32)

    def _table(self, X: np.ndarray, y: np.ndarray, rows: Rows) -> Table:
        x, start = np.empty((len(rows.position), X.shape[1]), np.float32), 0
        # Part by part, so that the table is never held a second time in double precision.
        for part in rows.parts():
            x[start : start + len(part.position)] = self._scaled(X[part.position])
            start += len(part.position)
        weight = (rows.weight / rows.weight.mean()).astype(np.float32)
        return Table(x, self._targets(y[rows.position]), weight)

    # -------------------------------------------------------------------------- the whole table

    def _fit_rows(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Train restarts side by side, keep the best, and measure its information."""
        random = check_random_state(self.random_state)
        n_init = check.integer("n_init", self.n_init, 1)
        warm = self.state_ if self._is_warm() else None
        rows = distinct(X, y, weight)
        if warm is None:
            self._set_scales(X, y, rows)
        table = self._table(X, y, rows)
        selector, expert = self._resources()
        self._keep_n_experts(warm is not None)
        seeds = random.randint(2**31 - 1, size=max(n_init, FOLDS))
        replicas = [Replica(int(seed), self.n_experts, selector, expert) for seed in seeds]
        if warm is None and self._stopping(len(table.x), replicas[0]) == "folds":
            states, scores = self._train_by_folds(table, replicas, n_init)
        else:
            states, scores = self._train(table, replicas[: n_init if warm is None else 1], warm)
        self.state_ = pick(states, int(np.argmax(scores)))
        self._measure(table)

    def _is_warm(self) -> bool:
        return self.warm_start and hasattr(self, "state_")

    def _keep_n_experts(self, going_on: bool) -> None:
        if going_on and self.n_experts != self.n_experts_:
            raise ValueError(
                f"`n_experts` must stay {self.n_experts_} to go on with a fitted committee, but "
                f"got {self.n_experts}."
            )
        self.n_experts_ = self.n_experts

    def _stopping(self, n_rows: int, replica: Replica) -> str | None:
        """Return by what training is stopped: by folds, by a part of the rows, or not at all."""
        check.number("validation_fraction", self.validation_fraction, 0.0, 0.9, open_low=True)
        asked = check.choice("early_stopping", self.early_stopping, (True, False, "auto", "folds"))
        if asked != "auto":
            named = {True: "part", False: None, "folds": "folds"}[asked]
            return named if n_rows > 1 else None
        # A budget is only met after many steps, and a schedule takes as many as it says.
        fixed = isinstance(replica.selector, Fixed) and isinstance(replica.expert, Fixed)
        if fixed and FEWEST_FOLDED <= n_rows <= MOST_FOLDED:
            return "folds"
        return "part" if n_rows >= 100 else None

    def _train_by_folds(
        self, table: Table, replicas: Sequence[Replica], n_init: int
    ) -> tuple[LearnerState, np.ndarray]:
        """Find by cross-validation how long to train, then train that long on all rows.

        On a small table a part of the rows cannot tell when to stop, and is missed when learning.
        """
        n_folds = min(FOLDS, len(table.x))
        order = self._shuffled(table, np.random.default_rng(replicas[0].seed))
        folds = Validation.folds(table, order, n_folds)
        searched = self._run(table, replicas[:n_folds], folds)
        if searched.ending == "interrupted" or not searched.history:
            return self._settle(searched)
        scores = [progress.score for progress in searched.history if progress.score is not None]
        steps = searched.history[int(np.argmax(np.mean(scores, axis=1)))].step
        return self._settle(self._run(table, replicas[:n_init], None, steps=steps, chunk=CHUNK))

    def _train(
        self, table: Table, replicas: Sequence[Replica], warm: LearnerState | None = None
    ) -> tuple[LearnerState, np.ndarray]:
        """Return the trained states of all replicas and how good each is."""
        validation = None
        if self._stopping(len(table.x), replicas[0]):
            order = self._shuffled(table, np.random.default_rng(replicas[0].seed))
            share = self.validation_fraction
            validation = Validation.part(table, order, share, len(replicas))
        return self._settle(self._run(table, replicas, validation, warm=warm))

    def _run(
        self,
        table: Table,
        replicas: Sequence[Replica],
        validation: Validation | None,
        *,
        steps: int | None = None,
        chunk: int | None = None,
        warm: LearnerState | None = None,
    ) -> Trained[LearnerState]:
        """Train replicas side by side."""
        learner = Learner(self._utility())
        states = (
            self._started(learner, replicas, table.x.shape[1])
            if warm is None
            else [self._continued(warm, r) for r in replicas]
        )
        keys = jnp.stack([jax.random.key(r.seed) for r in replicas])
        run = Run.start(keys, stack(states), keep_best=validation is not None)
        evaluate = None
        if validation is not None:
            evaluate = partial(
                _judge, self._score_function(), judged=validation.judged, folded=validation.folded
            )
            if warm is not None and run.best is not None:
                # What was learned before is only given up for something better.
                known = run.best.update(evaluate(run.state), run.state)
                run = eqx.tree_at(lambda r: r.best, run, known)
        batch_size = check.integer("batch_size", self.batch_size, 1)
        batches = (
            Epochs(len(table.x), batch_size)
            if validation is None
            else RowBatches(validation.learned, batch_size)
        )
        patience = check.integer("n_iter_no_change", self.n_iter_no_change, 1)
        max_iter = check.integer("max_iter", self.max_iter, 1)
        callbacks: list[Callback] = [ProgressBar(type(self).__name__)] if self.verbose else []
        trained = train(
            learner,
            run,
            table.padded(),
            batches=batches,
            steps=steps or max_iter,
            chunk=chunk or (UNCHECKED_CHUNK if validation is None else CHUNK),
            evaluate=evaluate,
            patience=patience if validation is not None else None,
            callbacks=callbacks,
        )
        self.n_iter_ = int(trained.run.step)
        self.history_ = trained.history
        return trained

    def _settle(self, trained: Trained[LearnerState]) -> tuple[LearnerState, np.ndarray]:
        """Return the best states of all replicas and how good each is."""
        run, history = trained.run, trained.history
        if run.best is not None:
            return _settled(run.best.state), np.asarray(run.best.score)
        scores = history[-1].info.objective if history else np.zeros(len(run.key))
        return _settled(run.state), scores

    # ------------------------------------------------------------------- batch after batch

    def _learn_on(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Go on learning, seeing each sample once."""
        selector, expert = self._resources()
        rows = Rows(np.arange(len(X)), weight)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        wanted = Replica(seed, self.n_experts, selector, expert)
        learner, old = Learner(self._utility()), getattr(self, "state_", None)
        self._keep_n_experts(old is not None)
        if old is None:
            self._set_scales(X, y, rows)
        table, begun = self._table(X, y, rows), 0 if old is None else self.n_iter_
        batch_size = check.integer("batch_size", self.batch_size, 1)
        epochs = Epochs(len(X), batch_size)
        states = (
            self._started(learner, [wanted], table.x.shape[1])
            if old is None
            else [self._continued(old, wanted)]
        )
        run = Run.start(jnp.stack([jax.random.key(wanted.seed)]), stack(states))
        run = eqx.tree_at(lambda r: r.step, run, jnp.asarray(begun))
        trained = train(
            learner,
            run,
            table.padded(),
            # The first epoch of these samples, whatever was seen before.
            batches=lambda seeds, start, n_steps: epochs(seeds, start - begun, n_steps),
            steps=begun - (-len(X) // batch_size),
            chunk=CHUNK,
        )
        self.state_ = pick(trained.run.state, 0)
        self.n_iter_ = int(trained.run.step)
        self._measure(table)


@compiled
def _settled(states: LearnerState) -> LearnerState:
    return eqx.filter_vmap(lambda state: state.settled())(states)


@compiled
def _judge(
    score_rows: ScoreRows, states: LearnerState, *, judged: Data, folded: bool
) -> Float[Array, " replicas"]:
    """Return the weighted mean score of every replica, or that of all together if by folds."""

    def one(state: LearnerState, data: Data) -> tuple[Array, Array]:
        scores = score_rows(state.settled().hierarchy, data)
        # Where a row weighs nothing its score may be anything.
        return jnp.sum(jnp.where(data.weight > 0, data.weight * scores, 0.0)), data.weight.sum()

    score, weight = eqx.filter_vmap(one, in_axes=(eqx.if_array(0), 0 if folded else None))(
        states, judged
    )
    return jnp.broadcast_to(score.sum() / weight.sum(), score.shape) if folded else score / weight
