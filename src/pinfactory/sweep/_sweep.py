"""One call for many evaluations: `sweep`."""

from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator

from pinfactory import settings as check

from .collecting import SweepError, SweepResult, collect
from .points import Call, PointByPoint, blocks_of, points_of
from .replicas import SideBySide
from .store import Store
from .targets import check_names, fit_and_score, stamp_of


def sweep(
    target: Any,
    grid: Any,
    X: Any = None,
    y: Any = None,
    *,
    test_size: float = 0.2,
    scoring: Any = None,
    random_state: int = 0,
    store: str | Path | None = None,
    jobs: int | None = None,
    scheduler: Any = None,
    replicas: int = 1,
    on_error: str = "raise",
    verbose: bool = True,
) -> SweepResult:
    """Evaluate a function, or fit an estimator, at every point of a grid.

    Points run in local processes, or on the workers of a scheduler. What is done is kept in
    `store` at once: the same call goes on where an earlier one was stopped, whatever stopped it. A
    point whose worker is lost runs again. The numbers do not depend on where a point ran.

    Parameters
    ----------
    target : function or estimator
        A function is called with a point's values as named arguments and returns plain data: a
        mapping (a column for each name) or a single value. An estimator is fitted with the values
        as settings and judged on held-out rows.
    grid : mapping or sequence of mappings
        Values for each name, of which all combinations are taken; or the points themselves.
    X, y : array-like, optional
        Data of an estimator.
    test_size : float, default=0.2
        Share of the rows that an estimator is judged on.
    scoring : str or callable, optional
        As in scikit-learn; the estimator's own `score` by default.
    random_state : int, default=0
        Divides the rows; also the seed of an estimator without one.
    store : path, optional
        Folder in which results are kept. They are found again if the code that the target is made
        of, its data, settings and library versions are the same.
    jobs : int, optional
        Number of local processes; one for each core by default.
    scheduler : str, Client or Executor, optional
        Address of a Dask scheduler, a Dask `Client`, or an executor of `concurrent.futures`.
    replicas : int, default=1
        So many points that differ in numbers only run side by side in one compiled program. For
        functions that JAX can trace in these numbers.
    on_error : {"raise", "keep"}, default="raise"
        Whether points that fail raise a `SweepError` after all others are done, or are only told
        in the result.
    verbose : bool, default=True
        Whether to show a bar with the time that remains, if stderr is a terminal.

    Returns
    -------
    SweepResult

    Examples
    --------
    >>> from pinfactory.sweep import sweep
    >>> result = sweep(pow, [{"base": 2, "exp": n} for n in (3, 5)], jobs=1)
    >>> [record["value"] for record in result]
    [8, 32]
    """
    points, size = points_of(grid), check.integer("replicas", replicas, 1)
    check.choice("on_error", on_error, ("raise", "keep"))
    check_names(target, points)
    evaluate: Any
    if isinstance(target, BaseEstimator):
        if size > 1:
            raise ValueError(
                "`replicas` is for functions that JAX can trace: leave it out for an estimator "
                "(`rate_utility_curve` trains committees side by side)."
            )
        evaluate = fit_and_score(
            target, X, y, test_size=test_size, scoring=scoring, random_state=random_state
        )
    elif X is not None or y is not None:
        raise ValueError("`X` and `y` are for estimators: let the function read its own data.")
    else:
        evaluate = Call(target)
    kept = None
    if store is not None:
        kept = Store.shared(Path(store), stamp_of(target, evaluate, size))
    work = PointByPoint(evaluate) if size == 1 else SideBySide(target, size)
    blocks = blocks_of(points, size)
    outcome = collect(work, points, blocks, kept, jobs=jobs, scheduler=scheduler, verbose=verbose)
    if outcome.failures and on_error == "raise":
        raise SweepError(outcome)
    return outcome
