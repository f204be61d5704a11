"""The command `pinfactory sweep`."""

import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import tyro

from ._arguments import named, value, values

_MOST_PRINTED = 40


def sweep(
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")],
    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE,… …")],
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE …")] = (),
    data: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv")] = None,
    column: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    test_size: float = 0.2,
    seed: int = 0,
    replicas: int = 1,
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    scheduler: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
    out: Path = Path("sweep"),
) -> int:
    """Evaluate a function, or fit an estimator, at every point of a grid.

    Writes OUT/results.csv. An interrupted sweep continues where it stopped.

    Parameters
    ----------
    target
        A function or a class as module:name, or a learner of pinfactory by its name.
    grid
        Values of each parameter: beta_selector=1,5,25 expert=linear,mlp random_state=0:10 (from 0
        to 9) selector_hidden=[8],[8,8]. All combinations are taken.
    settings
        Settings that all points share.
    data
        Of an estimator: a table with names in its first line.
    column
        Of an estimator: the column that is predicted; the last by default.
    test_size
        Of an estimator: share of the rows that is held out for the score.
    seed
        Divides the rows; also the seed of an estimator without one.
    replicas
        Of a function that JAX can trace: so many points run side by side in one program.
    jobs
        Number of processes; one for each core by default.
    scheduler
        A Dask scheduler whose workers compute, such as tcp://10.0.0.1:8786.
    out
        Folder for everything; created if missing.
    """
    wanted = dict(named("--grid", text, values) for text in grid)
    shared = dict(named("--set", text, value) for text in settings)
    if not wanted:
        raise ValueError("--grid must name at least one parameter: beta_selector=1,5,25")

    from functools import partial

    from pinfactory.sweep import sweep as run

    thing = _found(target)
    X = y = None
    if isinstance(thing, type):
        thing = thing(**shared)
        X, y = _table(thing, data, column)
    elif data is not None or column is not None:
        raise ValueError(f"--data and --column are for estimators, but {target} is a function")
    elif shared:
        thing = partial(thing, **shared)
    result = run(
        thing,
        wanted,
        X,
        y,
        test_size=test_size,
        random_state=seed,
        store=out / "pieces",
        jobs=jobs,
        scheduler=scheduler,
        replicas=replicas,
        on_error="keep",
    )
    out.mkdir(parents=True, exist_ok=True)
    _write(result, out / "results.csv")
    for failure in result.failures:
        print(f"FAILED {failure}", file=sys.stderr)
    print(f"\n{out / 'results.csv'}")
    return 1 if result.failures else 0


def _found(target: str) -> Any:
    """Return the function or class, from the folder the command was called in too."""
    module, colon, name = target.partition(":")
    if not colon:
        module, name = "pinfactory", target
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"TARGET must be module:function, module:Class or a learner, but got {target!r}: "
            f"{error}"
        ) from None
    if not callable(found):
        raise ValueError(f"TARGET must be a function or a class, but {target!r} is {found!r}")
    return found


def _table(estimator: Any, data: Path | None, column: str | None) -> tuple[Any, Any]:
    """Return inputs and targets; no targets if the estimator has none."""
    from sklearn.base import is_classifier, is_regressor

    if data is None:
        raise ValueError("an estimator is fitted on data: give --data FILE.csv")
    try:
        import pandas as pd
    except ImportError:
        raise ValueError("--data needs pandas: pip install pandas") from None
    table = pd.read_csv(data)
    if column is None:
        if not is_classifier(estimator) and not is_regressor(estimator):
            return table, None
        column = table.columns[-1]
    if column not in table:
        raise ValueError(f"--column must be one of {', '.join(table)}, but got {column!r}")
    return table.drop(columns=column), table[column]


def _write(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a table and print the first rows of it."""
    from pinfactory.sweep.store import write_file

    names = list(dict.fromkeys(name for record in records for name in record))
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, names)
    writer.writeheader()
    writer.writerows(records)
    write_file(path, table.getvalue().encode())
    print(" ".join(f"{name:>11.11}" for name in names))
    for record in records[:_MOST_PRINTED]:
        cells = [record.get(name, "") for name in names]
        print(" ".join(f"{c:>11.5g}" if isinstance(c, float) else f"{c!s:>11.11}" for c in cells))
    if len(records) > _MOST_PRINTED:
        print(f"… and {len(records) - _MOST_PRINTED} more")
