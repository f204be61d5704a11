"""What accuracy costs in bits: one committee at many prices, all trained side by side."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import joblib
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import clone, is_classifier
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from pinfactory import settings as check
from pinfactory.core.compiling import compiled_fully, with_library_settings
from pinfactory.core.families import Categorical, Family
from pinfactory.core.hierarchy import Decision, Hierarchy
from pinfactory.core.information import estimate_information, measure
from pinfactory.core.learning import Data, State, Utility
from pinfactory.sweep.collecting import SweepError, collect
from pinfactory.sweep.fingerprint import dependencies
from pinfactory.sweep.futures import IN_PROCESS
from pinfactory.sweep.points import Point
from pinfactory.sweep.store import Computed, Store, compute_block

from .committee import Committee
from .fitting import Replica, Trainer
from .table import Rows, Table, repeated
from .table_learner import MONTE_CARLO_ROWS

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

# More replicas side by side spill the cache and take longer for each.
MOST_REPLICAS = 16


@dataclass(frozen=True)
class RateUtilityCurve:
    """Accuracy, utility and bits on held-out data: one entry for every training.

    Attributes
    ----------
    beta_selector, beta_expert, n_experts, seed
        The settings. A β that follows a schedule or a budget is given as it was in the end.
    score
        Accuracy, or R² of a regressor.
    expected_utility
        E[U] over experts drawn from p(m|x), in the units of the utility on standardised targets.
    information_selector, information_experts, information_overall
        I(X;M), I(X;Y|M) and I(X;Y) in bits.
    score_name
        "accuracy" or "R²".
    """

    beta_selector: Float[np.ndarray, " trainings"]
    beta_expert: Float[np.ndarray, " trainings"]
    n_experts: np.ndarray
    seed: np.ndarray
    score: Float[np.ndarray, " trainings"]
    expected_utility: Float[np.ndarray, " trainings"]
    information_selector: Float[np.ndarray, " trainings"]
    information_experts: Float[np.ndarray, " trainings"]
    information_overall: Float[np.ndarray, " trainings"]
    score_name: str

    def __len__(self) -> int:
        return len(self.score)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a pandas DataFrame with one row for every training."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("`to_frame` returns a table: pip install pandas.") from error
        columns = asdict(self)
        del columns["score_name"]
        return pd.DataFrame(columns)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the score against the bits of both stages, and the frontier.

        Parameters
        ----------
        ax
            Axes to draw on; a new figure by default.

        Returns
        -------
        matplotlib.axes.Axes
        """
        from pinfactory.plotting import draw_curve

        return draw_curve(self, ax)


@with_library_settings
def rate_utility_curve(
    estimator: Committee,
    X: Any,
    y: Any,
    *,
    beta_selector: Iterable[float | int] | None = None,
    beta_expert: Iterable[float | int] | None = None,
    n_experts: Iterable[int] | None = None,
    n_seeds: int = 3,
    test_size: float = 0.2,
    random_state: Any = None,
    store: str | Path | None = None,
    jobs: int | None = None,
    scheduler: Any = None,
    verbose: bool = False,
) -> RateUtilityCurve:
    """Train a committee for every combination of β₁, β₂, number of experts and seed.

    The trainings run side by side in one compiled program, in this process or in others. All see
    the same training data and are judged on the same held-out data. Each is a single training,
    whatever `n_init` says.

    Parameters
    ----------
    estimator : SpecialistClassifier or SpecialistRegressor
        Has all other settings; it is not changed.
    X, y : array-like
        Samples and targets.
    beta_selector, beta_expert : sequence of float, optional
        Values of β₁ and β₂; those of the estimator if not given.
    n_experts : sequence of int, optional
        Numbers of experts; that of the estimator if not given.
    n_seeds : int, default=3
        Trainings for each combination.
    test_size : float, default=0.2
        Share of the samples that is held out.
    random_state : int, RandomState or None, default=None
        Source of randomness.
    store : path, optional
        Folder in which trainings that are done are kept, as of `pinfactory.sweep.sweep`: the same
        call with the same `random_state` goes on where an earlier one was stopped.
    jobs : int, optional
        Number of local processes; all is done in this one by default.
    scheduler : str, Client or Executor, optional
        A Dask scheduler, or an executor of `concurrent.futures`, as of `pinfactory.sweep.sweep`.
    verbose : bool, default=False
        Whether to show a progress bar.

    Returns
    -------
    RateUtilityCurve

    Examples
    --------
    >>> from sklearn.datasets import make_circles
    >>> from pinfactory import SpecialistClassifier, rate_utility_curve
    >>> X, y = make_circles(400, factor=0.4, noise=0.05, random_state=0)
    >>> committee = SpecialistClassifier(n_experts=4, max_iter=500)
    >>> curve = rate_utility_curve(
    ...     committee, X, y, beta_selector=[1.5, 25.0], n_seeds=2, random_state=0
    ... )
    >>> few, many = curve.information_selector.reshape(2, 2).mean(axis=1)
    >>> bool(few < many)
    True
    """
    random = check_random_state(random_state)
    seeds = random.randint(2**31 - 1, size=check.integer("n_seeds", n_seeds, 1))
    model = clone(estimator).set_params(verbose=False)
    if model.objective == "auto":
        # The curve is that of the principle itself.
        model.set_params(objective="free_energy")
    table, held_out = _tables(model, X, y, test_size, random)
    grid = _grid(model, beta_selector, beta_expert, n_experts, [int(seed) for seed in seeds])

    trainings = _Trainings(model, table, held_out, grid)
    points = [{"training": i} for i in range(len(grid))]
    result = collect(
        trainings,
        points,
        [[points[i] for i in block] for block in _blocks(grid)],
        None if store is None else Store.shared(Path(store), trainings.stamp),
        jobs=jobs,
        scheduler=IN_PROCESS if jobs is None and scheduler is None else scheduler,
        verbose=verbose,
    )
    if result.failures:
        raise SweepError(result)
    names = [name for name in result[0] if name not in ("training", "seconds")]
    return RateUtilityCurve(
        n_experts=np.asarray([r.n_experts for r in grid]),
        seed=np.asarray([r.seed for r in grid]),
        score_name="accuracy" if is_classifier(model) else "R²",
        **{name: np.asarray([record[name] for record in result]) for name in names},
    )


@dataclass(frozen=True)
class _Trainings:
    """Trains and judges blocks of the trainings in a grid."""

    model: Committee
    table: Table
    held_out: Table
    grid: Sequence[Replica]

    @cached_property
    def trainer(self) -> Trainer:
        return self.model._trainer()

    @property
    def stamp(self) -> dict[str, Any]:
        """Return what the numbers depend on."""
        code = dependencies(__name__, ["rate_utility_curve"])
        data = joblib.hash([self.model, self.table, self.held_out, self.grid])
        return {"data": data, "versions": code.libraries, "source": code.digest}

    def __call__(self, block: Sequence[Point]) -> list[Computed]:
        return compute_block(partial(self._columns, [self.grid[p["training"]] for p in block]))

    @with_library_settings
    def _columns(self, replicas: Sequence[Replica]) -> list[dict[str, Any]]:
        fit = self.trainer.fit_part(self.table, replicas)
        test = Data(*map(jnp.asarray, self.held_out))
        judged = _judge(self.trainer.problem.judge.utility, fit.states, test)
        scores = _scores(judged.answer, self.held_out.y, is_classifier(self.model))
        columns = jax.device_get({**judged.columns, "score": scores})
        return [{name: value[k] for name, value in columns.items()} for k in range(len(replicas))]


def _tables(
    model: Committee, X: Any, y: Any, test_size: float, random: np.random.RandomState
) -> tuple[Table, Table]:
    """Return training rows and held-out rows, scaled by the former."""
    classify = is_classifier(model)
    X, y, weight = model._checked(X, y, None, reset=True, numeric=not classify)
    fitted, held_out = train_test_split(np.arange(len(X)), test_size=test_size, random_state=random)
    if classify:
        model.classes_ = np.unique(y)
        y = model._codes(y).astype(np.int32)
    else:
        y = model._columns(y, reset=True)
    rows = repeated(X[fitted], y[fitted], weight[fitted], classes=classify)
    rows = Rows(fitted[rows.position], rows.weight)
    if classify:
        model._fit_scaler(X, rows)
    else:
        model._fit_scalers(X, y, rows)
        y = model._targets(y)
    return model._table(X, y, rows), model._table(X, y, Rows(held_out, weight[held_out]))


def _grid(
    model: Committee,
    beta_selector: Iterable[float | int] | None,
    beta_expert: Iterable[float | int] | None,
    n_experts: Iterable[int] | None,
    seeds: Sequence[int],
) -> list[Replica]:
    """Return all combinations; what is not given comes from the model."""
    selector, expert = model._resources()
    n_own, *below = model._sizes()
    if below:
        raise ValueError(
            "a curve needs an estimator with one level of selection, but got "
            f"n_experts={model.n_experts!r}."
        )
    selectors, experts, numbers = [selector], [expert], [n_own]
    if beta_selector is not None:
        selectors = [check.resource("selector", beta, None) for beta in beta_selector]
    if beta_expert is not None:
        experts = [check.resource("expert", beta, None) for beta in beta_expert]
    if n_experts is not None:
        numbers = [check.integer("n_experts", number, 1) for number in n_experts]
    grid = itertools.product(selectors, experts, numbers, seeds)
    replicas = [Replica(seed, number, of_m, of_y) for of_m, of_y, number, seed in grid]
    if not replicas:
        raise ValueError(
            "`beta_selector`, `beta_expert` and `n_experts` must hold at least one value each, "
            "but got an empty one."
        )
    return replicas


def _blocks(grid: Sequence[Replica]) -> list[list[int]]:
    """Return which trainings run side by side, in blocks of one size.

    Every block begins with the same training, one with the most experts: the first of a block
    decides which rows are set aside for early stopping, and the largest how many experts there
    are in the compiled program.
    """
    first = max(range(len(grid)), key=lambda i: grid[i].n_experts)
    others = [i for i in range(len(grid)) if i != first]
    n_blocks = max(1, -(-len(others) // (MOST_REPLICAS - 1)))
    length = -(-len(others) // n_blocks)
    blocks = [others[k * length : (k + 1) * length] for k in range(n_blocks)]
    return [[first] * (1 + length - len(block)) + block for block in blocks]


class Judged(eqx.Module):
    """What replicas make of held-out data: the committee's answers, and numbers for the curve."""

    answer: Family
    columns: dict[str, Float[Array, " replicas"]]


@compiled_fully
def _judge(utility: Utility, states: State, data: Data) -> Judged:
    """Judge all replicas at once."""

    def one(hierarchy: Hierarchy) -> tuple[Decision, Family, dict[str, Array]]:
        decision = jax.vmap(hierarchy)(data.x)
        share = decision.responsibilities
        worth = jax.vmap(jax.vmap(utility, in_axes=(0, None)))(decision.answers, data.y)
        answer = jax.vmap(lambda answers, share: answers.merge(share))(decision.answers, share)
        bits = measure(decision)
        columns = {
            "expected_utility": jnp.mean(jnp.sum(share * worth, axis=1)),
            "information_selector": bits.selectors[0],
            "information_experts": bits.experts,
            "information_overall": bits.overall,
        }
        return decision, answer, columns

    decisions, answer, columns = eqx.filter_vmap(one)(states.model)
    if not isinstance(decisions.answers, Categorical):
        few = jax.tree.map(lambda leaf: leaf[:, :MONTE_CARLO_ROWS], decisions)
        # One replica after the other: random numbers of all at once take long to compile.
        columns["information_overall"] = jax.lax.map(
            lambda decision: estimate_information(jax.random.key(0), decision)[1].value, few
        )
    selector, expert = (
        jax.vmap(lambda r: r.beta)(resource) for resource in states.constraints.resources
    )
    return Judged(answer, {**columns, "beta_selector": selector, "beta_expert": expert})


def _scores(answer: Any, y: np.ndarray, classify: bool) -> np.ndarray:
    """Return accuracy or R² of every replica."""
    if classify:
        codes = np.asarray(answer.log_probs).argmax(axis=2)
        return np.asarray([accuracy_score(y, code) for code in codes])
    return np.asarray([r2_score(y, mean) for mean in np.asarray(answer.mean)])
