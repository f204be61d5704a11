"""How a division of labour begins: candidates compared by rows that none of them has seen.

Candidates are one expert, linear model trees of two sizes, and random starts. All are trained side
by side, each is kept at its best step (which may be where it began), and the best is kept unless
one expert is as good.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from pinfactory import networks
from pinfactory import settings as check
from pinfactory.core.batches import padded
from pinfactory.core.constraints import Budget
from pinfactory.core.growth import BEYOND_NOISE, Gain, fewest_as_good, mean_gain
from pinfactory.core.hierarchy import Hierarchy, pick, stack
from pinfactory.core.learning import State

from .fitting import Fit, Replica, Trainer, scores_of_rows
from .linear_tree import LinearTree, accepts_leaves, begin, place, teach
from .table import RowNumbers, Table, Validation

# Draws the batches of what begins as a tree: the seed that `random_state=0` gives.
SAME_SEED = int(np.random.RandomState(0).randint(2**31 - 1))


class Candidate(NamedTuple):
    """One way to begin: a tree of so many leaves, or so many random experts."""

    n_experts: int
    replica: Replica
    tree: bool


class Found(NamedTuple):
    """The best candidate after training, and what it gained where that is known."""

    fit: Fit
    gain: Gain | None


def search(trainer: Trainer, table: Table, replicas: Sequence[Replica], n_init: int) -> Found:
    """Train all candidates and return the best.

    Parameters
    ----------
    trainer
        Trains states side by side.
    table
        The rows.
    replicas
        Seeds and resources of the candidates; the first is that of the trees.
    n_init
        How many random starts there are.
    """
    stopping = trainer.stopping(len(table.x), replicas[0])
    if stopping is None:
        return Found(_without_validation(trainer, table, replicas, n_init), None)
    validation = trainer.validation(table, stopping)
    trees = _trees(trainer, table, validation.learned, replicas[0], validation)
    candidates = _candidates(trainer, trees, table, validation, replicas, n_init)
    n_candidates, n_replicas = len(candidates), validation.n_replicas
    starting = [candidate for candidate in candidates for _ in range(n_replicas)]
    learned = [*validation.learned] * n_candidates
    states = _states(trainer, table, starting, trees * n_candidates, learned)
    own = [candidate.replica for candidate in starting]
    line = _errors_of_one_line(trainer, trees, table, validation, n_candidates)
    trained = trainer.run(table, states, own, validation, compare=True, line=line)
    best = trained.run.best
    assert best is not None
    scores = np.asarray(best.score)[::n_replicas]
    chosen, gain = _choose(trainer, candidates, validation, best.state, scores)
    # The last replica of a candidate is the one that has learned from all rows.
    number = (chosen + 1) * n_replicas - 1
    result = trainer.result(trained, table)
    kept = stack([pick(result.states, number)])
    return Found(Fit(kept, result.scores[number : number + 1], trained), gain)


def _without_validation(
    trainer: Trainer, table: Table, replicas: Sequence[Replica], n_init: int
) -> Fit:
    """Train the largest tree and random starts; the objective itself tells which is best.

    Where there are too few rows to hold any out, the tree remains as evidence has it: steps, and
    other starts, would only fit it closer to the rows there are.
    """
    everything = [np.arange(len(table.x))]
    trees = _trees(trainer, table, everything, replicas[0])
    candidates = [Candidate(r.n_experts, r, False) for r in _random(trainer, replicas, n_init)]
    too_few = trees[0] is not None and trainer.has_too_few(len(table.x), replicas[0])
    if trees[0] is not None:
        tree = _of_tree(trainer, trees[0].n_leaves, replicas[0])
        candidates = [tree] if too_few else [tree, *candidates]
    n = len(candidates)
    states = _states(trainer, table, candidates, trees * n, everything * n)
    own = [candidate.replica for candidate in candidates]
    trained = trainer.run(table, states, own, None, steps=0 if too_few else None)
    return trainer.result(trained, table)


# ------------------------------------------------------------------------------ how to begin


def _trees(
    trainer: Trainer,
    table: Table,
    learned: Sequence[RowNumbers],
    replica: Replica,
    validation: Validation | None = None,
) -> list[LinearTree | None]:
    """Grow a tree on the rows of every fold, where experts can begin as its leaves.

    Splits are parallel to the axes, unless oblique ones are better on held-out rows.
    """
    options = ("auto", "tree", "random")
    start = check.choice("start", trainer.settings.start, options)
    possible = accepts_leaves(trainer.problem.expert(jax.random.key(0)))
    if start == "tree" and not possible:
        raise ValueError(
            "`start` must be 'auto' or 'random' for experts without a linear part, but got 'tree'."
        )
    # A schedule is itself a way to begin.
    if not possible or start == "random" or (start == "auto" and replica.is_scheduled):
        return [None] * len(learned)
    grow = partial(trainer.problem.grow, table, n_leaves=replica.n_experts)
    parallel = [grow(rows=rows) for rows in learned]
    n_columns = table.x.shape[1]
    # Fewer rows than columns never pay for the weights of an oblique split.
    possible = 1 < n_columns < len(learned[0])
    if validation is None or replica.n_experts == 1 or not possible:
        return [*parallel]
    oblique = [grow(rows=learned[0], oblique=True)]
    mean, error = _gain_of_trees(oblique, parallel[:1], table, validation)
    if mean <= error:  # not worth a tree in every fold
        return [*parallel]
    oblique += [grow(rows=rows, oblique=True) for rows in learned[1:]]
    mean, error = _gain_of_trees(oblique, parallel, table, validation)
    return [*(oblique if mean > BEYOND_NOISE * error else parallel)]


def _gain_of_trees(
    trees: Sequence[LinearTree], others: Sequence[LinearTree], table: Table, validation: Validation
) -> Gain:
    """Return what trees gain over others on held-out rows, each with the best number of leaves."""
    (scores, weight), (known, _) = (_held_out(each, table, validation) for each in (trees, others))
    best, best_known = (part[:, np.argmax(weight @ part)] for part in (scores, known))
    return mean_gain(best - best_known, weight)


def _random(trainer: Trainer, replicas: Sequence[Replica], n_init: int) -> Sequence[Replica]:
    return replicas[:n_init] if trainer.settings.start != "tree" else []


def _candidates(
    trainer: Trainer,
    trees: Sequence[LinearTree | None],
    table: Table,
    validation: Validation,
    replicas: Sequence[Replica],
    n_init: int,
) -> list[Candidate]:
    first, candidates = replicas[0], []
    if trees[0] is not None:
        grown = [tree for tree in trees if tree is not None]
        largest = max(tree.n_leaves for tree in grown)
        best = fewest_as_good(*_held_out(grown, table, validation))
        sizes = {1, best} | ({largest} if trainer.cheap else set())
        if isinstance(first.selector, Budget) and first.selector.bits > 0:
            # Bits are for choosing among as many as there are.
            sizes = {largest} - {1}
        candidates = [_of_tree(trainer, size, first) for size in sorted(sizes)]
    if len(candidates) > 1 and not trainer.cheap:
        # Networks learn what a finer division would bring, and take long to train.
        return candidates
    for replica in _random(trainer, replicas, n_init):
        # One random expert would be the same as one leaf, only later.
        if replica.n_experts > 1 or not candidates:
            candidates.append(Candidate(replica.n_experts, replica, False))
    return candidates


def _of_tree(trainer: Trainer, n_leaves: int, replica: Replica) -> Candidate:
    """Return the candidate that begins as leaves, the same whatever the seed where it can be."""
    seed = SAME_SEED if trainer.only_batches_are_random else replica.seed
    return Candidate(n_leaves, replica._replace(seed=seed), True)


def _held_out(
    trees: Sequence[LinearTree], table: Table, validation: Validation
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, " n"]]:
    """Return log p(y|x) of held-out rows under trees with 1, 2, … leaves, and the rows' weights."""
    most = max(tree.n_leaves for tree in trees)
    likelihoods, weights = [], []
    for tree, rows in zip(trees, validation.judged_rows, strict=False):
        part = table.take(rows)
        found = tree.log_likelihoods(part)
        # A tree that stopped growing stays as it is.
        likelihoods.append(found[:, np.minimum(np.arange(most), tree.n_leaves - 1)])
        weights.append(part.weight)
    return np.concatenate(likelihoods), np.concatenate(weights).astype(float)


def _states(
    trainer: Trainer,
    table: Table,
    candidates: Sequence[Candidate],
    trees: Sequence[LinearTree | None],
    learned: Sequence[RowNumbers],
) -> list[State]:
    """Return the states in which candidates begin, each with the tree of its own rows."""
    replicas = [candidate.replica for candidate in candidates]
    hierarchies = trainer.hierarchies(replicas)
    taught = []
    for n, (candidate, tree) in enumerate(zip(candidates, trees, strict=True)):
        if candidate.tree and tree is not None:
            size = min(candidate.n_experts, tree.n_leaves)
            hierarchies[n] = begin(hierarchies[n], tree, size)
            if size > 1 and not isinstance(hierarchies[n].selector, networks.SoftTree):
                taught.append((n, partial(place, tree, size, hierarchies[n].sizes)))
    if taught:
        numbers = [n for n, _ in taught]
        new = teach(
            [hierarchies[n] for n in numbers],
            table,
            [learned[n] for n in numbers],
            [assign for _, assign in taught],
            [candidates[n].replica.seed for n in numbers],
        )
        for n, hierarchy in zip(numbers, new, strict=True):
            hierarchies[n] = hierarchy
    return trainer.initial_states(hierarchies, replicas)


# --------------------------------------------------------------------------- which is the best


def _errors_of_one_line(
    trainer: Trainer,
    trees: Sequence[LinearTree | None],
    table: Table,
    validation: Validation,
    n_candidates: int,
) -> Float[Array, "... rows"] | None:
    """Return the squared errors of one regression on the rows that all are judged by."""
    if trainer.problem.judge.error is None or trees[0] is None:
        return None
    length = validation.judged.weight.shape[-1]
    errors = []
    for tree, rows in zip(trees, validation.judged_rows, strict=True):
        assert tree is not None
        squares = np.sum(tree.errors_of_root(table.take(rows)) ** 2, axis=1)
        errors.append(padded(squares.astype(np.float32), length))
    return jax.device_put(np.tile(errors, (n_candidates, 1)) if validation.folded else errors[0])


def _choose(
    trainer: Trainer,
    candidates: Sequence[Candidate],
    validation: Validation,
    states: State[Hierarchy],
    best_scores: Float[np.ndarray, " candidates"],
) -> tuple[int, Gain | None]:
    """Return the best candidate and its gain over one expert.

    One expert is kept unless a tree gains more than `BEYOND_NOISE` standard errors, in score or in
    squared error, and that unless a random start does in score: what begins as a tree does not
    depend on the seed.
    """
    judged = validation.judged_together(len(candidates))
    weight = np.asarray(validation.judged.weight, float).ravel()
    shape, kept = (len(candidates), -1), weight > 0
    rows = scores_of_rows(trainer.problem.judge, states, judged, validation.folded)
    scores, *squares = (np.asarray(part, float).reshape(shape)[:, kept] for part in rows)
    weight = weight[kept]

    # From the simplest kind to the others: one leaf, trees, random starts.
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for n, candidate in enumerate(candidates):
        kinds.setdefault((not candidate.tree, candidate.n_experts > 1), []).append(n)
    chosen = None
    for _, members in sorted(kinds.items()):
        best = max(members, key=lambda n: best_scores[n])
        if chosen is None:
            chosen = best
        elif best_scores[best] > best_scores[chosen]:
            # A few rows far from what is expected hide a gain in likelihood first.
            counted = [scores, *squares] if candidates[best].tree else [scores]
            gains = [mean_gain(part[best] - part[chosen], weight) for part in counted]
            chosen = best if any(mean > BEYOND_NOISE * error for mean, error in gains) else chosen
    assert chosen is not None
    single = kinds.get((False, False))
    return chosen, mean_gain(scores[chosen] - scores[single[0]], weight) if single else None
