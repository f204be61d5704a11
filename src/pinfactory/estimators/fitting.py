"""How committees are trained on a table: side by side, judged by held-out rows, and stopped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key

from pinfactory import settings as check
from pinfactory.core.batches import Batches, Epochs, current_mesh, share_rows
from pinfactory.core.compiling import compiled
from pinfactory.core.constraints import Budget, Constraints, Priors, Resource, Schedule, Scheduled
from pinfactory.core.hierarchy import Decision, Expert, Hierarchy, assemble, stack, zeros_like
from pinfactory.core.learning import CommitteeLoss, Data, Learner, Loss, State, Utility
from pinfactory.core.training import Run, Trained
from pinfactory.networks import reserve

from .budgets import meet_budgets
from .linear_tree import LinearTree
from .parameters import CommitteeSettings
from .table import RowBatches, RowNumbers, Table, Validation

# A hundredth of R² more than one line loses costs a nat for each row. So much more of the targets'
# variance a committee may leave unexplained; a standard error counts as a loss, too, because what
# is judged by few rows, or by heavy tails, is often worse than it seems.
PRICE_OF_ERROR, ERROR_ALLOWED = 100.0, 0.002


class Judge(NamedTuple):
    """How answers are judged; what compiled functions need of a problem, the same for every fit."""

    utility: Utility  # what an expert's answer is worth
    # How good the whole committee's answer is for each row of a validation set.
    score: Callable[[Hierarchy, Data], Float[Array, " n"]]
    # The squared error of the committee's answer for each row, where committees must not be worse
    # in it than one line; else None.
    error: Callable[[Hierarchy, Data], Float[Array, " n"]] | None = None


@compiled
def held_out_scores(
    judge: Judge,
    states: State,
    *,
    judged: Data,
    together: int | None,
    line: Float[Array, "... rows"] | None = None,
    mesh: Mesh | None = None,
) -> Float[Array, " replicas"]:
    """Return the weighted mean score of every replica, or of so many at a time.

    Committees with budgets are judged as they are when their budgets are met. What the error
    exceeds that of one line by is a loss, `PRICE_OF_ERROR` times as large, and so is what is not
    used of budgets.
    """

    def one(
        state: State, data: Data, line: Float[Array, " rows"] | None
    ) -> tuple[Float[Array, ""], ...]:
        data, line = share_rows(mesh, (data, line))
        model, missing = _in_force(judge, state, data)

        def total(values: Float[Array, " rows"]) -> Float[Array, ""]:
            # Where a row weighs nothing its score may be anything.
            return jnp.where(data.weight > 0, data.weight * values, 0.0).sum()

        score = total(judge.score(model, data) - PRICE_OF_ERROR * missing)
        if judge.error is None or line is None:
            return score, data.weight.sum()
        loss = judge.error(model, data) - line
        powers = (data.weight * loss**k for k in range(3))
        return score, data.weight.sum(), total(loss), *map(total, powers)

    in_axes = (eqx.if_array(0), *(None if together is None else eqx.if_array(0),) * 2)
    sums = eqx.filter_vmap(one, in_axes=in_axes)(states, judged, line)
    if together is not None:
        sums = tuple(part.reshape(-1, together).sum(axis=1) for part in sums)
    score, weight, *losses = sums
    score = score / weight
    if losses:
        mean, *powers = (loss / weight for loss in losses)
        # Σ w² (loss − mean)² / Σ w, by sums that folds have each for itself.
        square = powers[2] - 2.0 * mean * powers[1] + mean**2 * powers[0]
        error = jnp.sqrt(jnp.maximum(square, 0.0) / weight)
        score = score - PRICE_OF_ERROR * jnp.maximum(mean + error - ERROR_ALLOWED, 0.0)
    return score if together is None else jnp.repeat(score, together)


@compiled
def scores_of_rows(
    judge: Judge, states: State, judged: Data, folded: bool
) -> tuple[Float[Array, "replicas rows"], ...]:
    """Return the score of every row that replicas are judged by, and −error² where it counts."""

    def one(state: State, data: Data) -> tuple[Float[Array, " rows"], ...]:
        model, missing = _in_force(judge, state, data)
        score = judge.score(model, data) - PRICE_OF_ERROR * missing
        return (score,) if judge.error is None else (score, -judge.error(model, data))

    in_axes = (eqx.if_array(0), 0 if folded else None)
    return eqx.filter_vmap(one, in_axes=in_axes)(states, judged)


def _in_force(judge: Judge, state: State, data: Data) -> tuple[Hierarchy, Float[Array, ""]]:
    """Return the committee that a state stands for, and how far it stays below its budgets."""
    state = state.averaged()
    if not state.constraints.has_budget:
        return state.model, jnp.zeros(())
    met = meet_budgets(state, data, judge.utility)
    return met.state.model, met.shortfall


# Steps between two looks at the validation rows; fixed, because it is part of a compiled shape.
CHUNK = 100
# … and if there are none, long enough that the return to Python costs nothing.
UNCHECKED_CHUNK = 2500
# Folds of small tables and of larger ones, where a part of the rows misses less.
FOLDS, FEW_FOLDS, MOST_IN_FOLDS = 5, 3, 2000
# Fewer rows are too few to judge by. From so many rows on a part of them is enough to judge by.
FEWEST_FOLDED, MOST_FOLDED = 10, 10_000
# A step sees a sixty-fourth of the rows, within these bounds; half of that if experts are networks,
# whose steps take longer.
SMALLEST_BATCH, LARGEST_BATCH, BATCHES = 32, 1024, 64


class Problem(NamedTuple):
    """What one kind of target needs of a committee."""

    n_features: int  # numbers in an input
    expert: Callable[[Key[Array, ""]], Expert]  # builds an expert from a key
    judge: Judge  # how answers are judged
    # Returns an order of the rows of a table, any part of which stands for all.
    order: Callable[[Table, np.random.Generator], RowNumbers]
    grow: Callable[..., LinearTree]  # grows a linear model tree on a table; see `splits.grow`


class Replica(NamedTuple):
    """How one of several trainings that run side by side differs from the others."""

    seed: int
    n_experts: int
    selector: Resource
    expert: Resource

    @property
    def is_scheduled(self) -> bool:
        """Whether β takes as many steps as a schedule says."""
        return any(isinstance(r, Scheduled) for r in (self.selector, self.expert))

    def resources(self, n_stages: int) -> tuple[Resource, ...]:
        """Return where β of every stage comes from; all selectors have the same."""
        return (*(self.selector,) * (n_stages - 1), self.expert)


class Fit(NamedTuple):
    """Trained states of all replicas, how good each is, and how training went."""

    states: State
    scores: Float[np.ndarray, " replicas"]
    trained: Trained[State]


@dataclass(frozen=True)
class Trainer:
    """Trains replicas of a committee."""

    settings: CommitteeSettings  # the estimator that has the settings
    problem: Problem  # what its targets need
    # `pinfactory.core.training.train`, with callbacks and the like.
    train: Callable[..., Trained[State]]

    @property
    def cheap(self) -> bool:
        """Whether experts are so simple that many candidates and folds take little time."""
        return self.settings.expert in ("constant", "linear")

    @property
    def only_batches_are_random(self) -> bool:
        """Whether nothing is random in what begins as a tree but the order of the rows."""
        known = self.settings.selector == "tree" and self.settings.expectation == "exact"
        return self.cheap and known

    @property
    def learner(self) -> Learner:
        """Gradient ascent on J."""
        options = ("exact", "sampled")
        expectation: Any = check.choice("expectation", self.settings.expectation, options)
        mixture = self.settings._objective() == "likelihood"
        loss = CommitteeLoss(self.problem.judge.utility, expectation, mixture)
        return Learner(loss, keep_average=self.settings.averaging)

    # ------------------------------------------------------------------ states before training

    def start(self, replicas: Sequence[Replica]) -> list[State]:
        """Return untrained states."""
        return self.initial_states(self.hierarchies(replicas), replicas)

    def hierarchies(self, replicas: Sequence[Replica]) -> list[Hierarchy]:
        """Return hierarchies of random parameters; all have the shape of the largest."""
        sizes, most = self.settings._sizes(), max(r.n_experts for r in replicas)

        def untrained(replica: Replica) -> Hierarchy:
            key = jax.random.key(replica.seed)
            if len(sizes) > 1:
                return self._hierarchy(key, sizes)
            reserve(most)
            available = jax.device_put(np.arange(most) < replica.n_experts)
            return eqx.tree_at(lambda h: h.available, self._hierarchy(key, (most,)), available)

        return list(map(untrained, replicas))

    def initial_states(
        self, hierarchies: Sequence[Hierarchy], replicas: Sequence[Replica]
    ) -> list[State]:
        """Return the states of hierarchies before their first step."""
        priors, (rate, decay) = self._priors(hierarchies[0]), self._rates()

        def one(hierarchy: Hierarchy, replica: Replica) -> State:
            return self.learner.init(
                hierarchy,
                Constraints(priors, replica.resources(len(priors.stages))),
                learning_rate=rate,
                weight_decay=decay,
            )

        return list(map(one, hierarchies, replicas))

    def proceed(self, state: State, wanted: Replica) -> State:
        """Return what was learned before, with the settings of now."""
        known = state.constraints.resources
        resources = tuple(map(_resumed, known, wanted.resources(len(known))))
        rate, decay = self._rates()
        return eqx.tree_at(
            lambda s: (s.constraints.resources, s.learning_rate, s.weight_decay),
            state,
            (resources, Schedule.constant(rate), jnp.asarray(decay)),
        )

    def _hierarchy(self, key: Key[Array, ""], sizes: Sequence[int]) -> Hierarchy:
        """Build a hierarchy with random parameters, of so many experts at every level."""
        n_experts, *below = sizes
        selector = partial(self.settings._selector, self.problem.n_features, n_experts)
        expert = partial(self._hierarchy, sizes=below) if below else self.problem.expert
        hierarchy = assemble(key, selector, expert, n_experts)
        return replace(hierarchy, top_k=self.settings._top_k())

    def _priors(self, hierarchy: Hierarchy) -> Priors:
        leaves, structure = jax.tree.flatten(hierarchy)
        like = zeros_like(
            _decision(structure, tuple(map(_outline, leaves)), self.problem.n_features)
        )
        if check.choice("prior", self.settings.prior, ("running", "uniform")) == "uniform":
            return Priors.uniform(like)
        return self.settings._priors(like)

    def _rates(self) -> tuple[float, float]:
        """Return learning rate and weight decay."""
        return (
            check.number("learning_rate", self.settings.learning_rate, 0.0, open_low=True),
            check.number("weight_decay", self.settings.weight_decay, 0.0),
        )

    # ------------------------------------------------------------------------------- training

    def fit_part(self, table: Table, replicas: Sequence[Replica], warm: State | None = None) -> Fit:
        """Train replicas, stopped by a part of the rows if asked for."""
        validation = None
        if self.stopping(len(table.x), replicas[0]):
            validation = self.validation(table, "part")
        states = self.start(replicas) if warm is None else [self.proceed(warm, r) for r in replicas]
        # What was learned before is only given up for something better.
        trained = self.run(table, states, replicas, validation, compare=warm is not None)
        return self.result(trained, table)

    def validation(self, table: Table, stopping: str) -> Validation:
        """Return the rows that are set aside for one candidate.

        The same whatever the seed, so that the same data are divided in the same way.
        """
        order = self.problem.order(table, np.random.default_rng(0))
        if stopping == "part":
            return Validation.part(table, order, self.settings.validation_fraction)
        n_folds = FOLDS if self.cheap and len(order) <= MOST_IN_FOLDS else FEW_FOLDS
        return Validation.folds(table, order, min(n_folds, len(order)))

    def stopping(self, n_rows: int, replica: Replica) -> str | None:
        """Return by what training is stopped: by folds, by a part of the rows, or not at all."""
        settings = self.settings
        check.number("validation_fraction", settings.validation_fraction, 0.0, 0.9, open_low=True)
        options = (True, False, "auto", "folds")
        asked = check.choice("early_stopping", settings.early_stopping, options)
        if asked != "auto":
            named = {True: "part", False: None, "folds": "folds"}[asked]
            return named if n_rows > 1 else None
        most = MOST_FOLDED if self.cheap else MOST_IN_FOLDS
        if not replica.is_scheduled and FEWEST_FOLDED <= n_rows <= most:
            return "folds"
        return "part" if n_rows >= 100 else None

    def has_too_few(self, n_rows: int, replica: Replica) -> bool:
        """Return whether rows would have been held out if there were more of them."""
        asked = self.settings.early_stopping == "auto" and not replica.is_scheduled
        return asked and n_rows < FEWEST_FOLDED

    def batch_size(self, n_rows: int) -> int:
        """Return the rows of a step."""
        if self.settings.batch_size == "auto":
            share = n_rows // (BATCHES if self.cheap else 2 * BATCHES)
            wanted = min(max(share, SMALLEST_BATCH), LARGEST_BATCH)
            return 2 ** (wanted.bit_length() - 1)
        return check.integer("batch_size", self.settings.batch_size, 1)

    def run(
        self,
        table: Table,
        states: Sequence[State],
        replicas: Sequence[Replica],
        validation: Validation | None,
        *,
        compare: bool = False,
        line: Float[Array, "... rows"] | None = None,
        steps: int | None = None,
    ) -> Trained[State]:
        """Train replicas side by side; `compare` them with where they began, too.

        With folds the replicas of each candidate follow one another. `line` holds the
        squared errors of one line on held-out rows; a state with larger ones counts as worse.
        """
        keys = jnp.stack([jax.random.key(r.seed) for r in replicas])
        run = Run.start(keys, stack(states), keep_best=validation is not None)
        batch_size = self.batch_size(len(table.x))
        batches: Batches = Epochs(len(table.x), batch_size)
        evaluate = None
        if validation is not None:
            n_candidates = len(replicas) // validation.n_replicas
            batches = RowBatches([*validation.learned] * n_candidates, batch_size)
            evaluate = partial(
                held_out_scores,
                self.problem.judge,
                line=line,
                judged=validation.judged_together(n_candidates),
                together=validation.n_replicas if validation.folded else None,
                mesh=current_mesh(),
            )
            if compare and run.best is not None:
                known = run.best.update(evaluate(run.state), run.state)
                run = eqx.tree_at(lambda r: r.best, run, known)
        patience = check.integer("n_iter_no_change", self.settings.n_iter_no_change, 1)
        max_iter = check.integer("max_iter", self.settings.max_iter, 1)
        return self.train(
            self.learner,
            run,
            table.padded(),
            batches=batches,
            steps=max_iter if steps is None else steps,
            chunk=UNCHECKED_CHUNK if validation is None else CHUNK,
            evaluate=evaluate,
            patience=patience if validation is not None else None,
        )

    def result(self, trained: Trained[State], table: Table) -> Fit:
        """Return the best states of all replicas and how good each is."""
        run = trained.run
        if run.best is not None:
            return Fit(_averaged(run.best.state), np.asarray(run.best.score), trained)
        states = _averaged(run.state)
        if len(run.key) == 1:
            return Fit(states, np.zeros(1), trained)
        # Rows come in the order of a hash: the first of them are a random sample.
        data = table.take(np.arange(min(len(table.x), MOST_FOLDED))).padded()
        if run.state.constraints.has_budget:
            # Objectives cannot be compared where every replica has found a price of its own.
            scores = held_out_scores(self.problem.judge, run.state, judged=data, together=None)
        else:
            scores = _objectives(self.learner.loss, states, data, run.key[0])
        return Fit(states, np.asarray(scores), trained)


def _resumed(old: Resource, new: Resource) -> Resource:
    """Return the resource of `new` at the point that `old` has come to."""
    if isinstance(old, Budget) and isinstance(new, Budget):
        return eqx.tree_at(lambda r: r.bits, old, new.bits)
    if isinstance(old, Scheduled) and isinstance(new, Scheduled):
        return eqx.tree_at(lambda r: r.step, new, old.step)
    return new


@lru_cache(maxsize=64)
def _decision(structure: Any, leaves: tuple, n_features: int) -> Decision:
    """Return the shapes of a hierarchy's answers; tracing it takes longer than a hundred steps."""
    hierarchy = jax.tree.unflatten(structure, leaves)
    return eqx.filter_eval_shape(hierarchy, jax.ShapeDtypeStruct((n_features,), jnp.float32))


def _outline(leaf: Any) -> Any:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if eqx.is_array(leaf) else leaf


@compiled
def _averaged(states: State) -> State:
    return eqx.filter_vmap(lambda state: state.averaged())(states)


@compiled
def _objectives(
    loss: Loss, states: State, data: Data, key: Key[Array, ""]
) -> Float[Array, " replicas"]:
    """Return J of every replica."""
    return eqx.filter_vmap(lambda state: -loss(state.model, state, data, key)[0])(states)
