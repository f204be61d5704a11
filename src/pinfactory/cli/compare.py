"""The command `pinfactory compare`."""

from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pinfactory.formats import decimals

from .fit import make_committee
from .tables import Count, Table, Task, print_json, print_table

if TYPE_CHECKING:
    from pinfactory.report import Judgement


def compare(
    table: Table,
    folds: Count = 5,
    skip: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[MODEL …]")] = (),
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    scheduler: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
) -> int:
    """Compare a committee with other models of a table by cross-validation.

    Others: one line, a tree, boosting, and Cubist and EBM if installed.

    On a large table EBM, which is slow, learns from fewer rows.

    Parameters
    ----------
    folds
        Parts that the rows are divided into.
    skip
        Models to leave out, such as EBM.
    jobs
        Processes that share the folds; by default they run one after the other.
    scheduler
        A Dask scheduler whose workers share them, such as tcp://10.0.0.1:8786.
    """
    if folds < 2:
        raise ValueError(f"--folds must be at least 2, but got {folds}")
    if jobs is not None and (jobs < 1 or scheduler is not None):
        raise ValueError(f"--jobs must be at least 1, and is not for --scheduler, but got {jobs}")
    task = table.task()
    skip = _known_models(skip)
    found = cross_validate(
        task,
        table.experts,
        folds,
        table.seed,
        skip=skip,
        jobs=jobs,
        scheduler=scheduler,
        progress=not table.json,
    )
    if table.json:
        print_json(found)
        return 0
    measure, error = ("accuracy", "log-loss") if task.classify else ("R²", "mean error")
    rows = [["", measure, error, "terms", "rules", "bits", "s"]]
    for name, told in found.items():
        bits = "" if told["bits"] is None else f"{told['bits']:.2f}"
        rules = "" if told["rules"] is None else f"{told['rules']:.1f}"
        score = f"{decimals(told['score'], 3)} ± {told['spread']:.3f}"
        rows.append([name, score, f"{told['error']:.4g}", f"{told['terms']:,.0f}"])
        rows[-1] += [rules, bits, f"{told['seconds']:.1f}"]
    print(
        f"{table.data.name}: mean over {folds} folds of {len(task.y):,} rows; ± is between folds\n"
    )
    print_table(rows)
    for name, told in found.items():
        if told["rows"] is not None:
            print(f"\n{name} learned from {told['rows']:,.0f} rows; --skip {name} is faster")
    return 0


def _known_models(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return models as they are spelt, also those that are not installed; refuse other names."""
    from pinfactory.report import PEERS

    known = {name.lower(): name for name in PEERS}
    for name in names:
        if name.lower() not in known:
            raise ValueError(
                f"--skip must be among {', '.join(map(repr, PEERS))}, but got {name!r}"
            )
    return tuple(known[name.lower()] for name in names)


def cross_validate(
    task: Task,
    experts: int,
    folds: int,
    seed: int,
    *,
    skip: tuple[str, ...] = (),
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the mean of every model over all folds; without jobs or scheduler they run here."""
    from functools import partial

    import numpy as np

    from pinfactory.report import EBM, peers
    from pinfactory.sweep import sweep
    from pinfactory.sweep.futures import IN_PROCESS

    fast = [name for name in peers(task.classify, seed, 2) if name not in (EBM, *skip)]
    slow = [name for name in peers(task.classify, seed, 2) if name == EBM and name not in skip]
    judged = sweep(
        partial(judge_fold, task.frame, task.y, task.classify, experts, folds, seed),
        # What takes longest has tasks of its own, which come last: the time left is told well.
        {"names": [tuple(names) for names in (fast, slow) if names or names is fast]}
        | {"fold": range(folds)},
        jobs=jobs,
        scheduler=IN_PROCESS if jobs is None and scheduler is None else scheduler,
        verbose=progress,
    )
    models: dict[str, list[dict[str, Any]]] = {}
    for told in judged:
        for name, numbers in told["models"].items():
            models.setdefault(name, []).append(numbers)

    def mean(values: list[Any]) -> float | None:
        return None if None in values else float(np.mean(values))

    return {
        name: {number: mean([one[number] for one in found]) for number in found[0]}
        | {"spread": float(np.std([one["score"] for one in found]))}
        for name, found in models.items()
    }


def judge_fold(
    frame: Any,
    y: Any,
    classify: bool,
    experts: int,
    folds: int,
    seed: int,
    *,
    names: tuple[str, ...],
    fold: int,
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return what models make of the rows of a fold, learned from all others.

    A committee is among them unless EBM is, which has tasks of its own.
    """
    import numpy as np
    from sklearn.model_selection import KFold, StratifiedKFold

    from pinfactory.report import EBM, judge_peer, peers

    enough = classify and y.value_counts().min() >= folds
    splits = (StratifiedKFold if enough else KFold)(folds, shuffle=True, random_state=seed)
    rows, others = list(splits.split(frame, y if enough else None))[fold]
    parts = [(frame.iloc[i], y.iloc[i].to_numpy()) for i in (rows, others)]
    classes = np.unique(parts[0][1]) if classify else None
    found: dict[str, dict[str, float | None]] = {}
    n_leaves = 2
    if EBM not in names:
        found, n_leaves = _judge_committee(experts, seed, classes, *parts)
    makers = peers(classify, seed, n_leaves)
    found |= {name: _numbers(judge_peer(name, makers[name], classes, *parts)) for name in names}
    return {"models": found}


def _judge_committee(
    experts: int, seed: int, classes: Any, learned: tuple[Any, Any], held_out: tuple[Any, Any]
) -> tuple[dict[str, dict[str, float | None]], int]:
    """Return what a committee makes of rows, and how many rules it has."""
    import time

    from pinfactory.report import COMMITTEE, judge

    start = time.process_time()
    ours = make_committee(classes is not None, experts, None, seed).fit(*learned)
    told = judge(COMMITTEE, ours, classes, *held_out, time.process_time() - start)
    rules, bits = len(ours.rules()), float(ours.information_.selector)
    return {COMMITTEE: _numbers(told) | {"bits": bits, "rules": rules}}, rules


def _numbers(judged: "Judgement") -> dict[str, float | None]:
    """Return what is told of a model in one fold."""
    told = {name: value for name, value in judged._asdict().items() if name != "name"}
    return told | {"bits": None, "rules": None}
