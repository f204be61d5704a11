"""The command `pinfactory compare`."""

from typing import Annotated, Any

import tyro

from .fit import make_committee
from .tables import Count, Table, Task, print_json, print_table


def compare(
    table: Table,
    folds: Count = 5,
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    scheduler: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
) -> int:
    """Compare committees with other models of a table, by cross-validation.

    A line, a decision tree with as many leaves as there are experts, boosting, and if they are
    installed Cubist (of numbers) and EBM.

    Parameters
    ----------
    folds
        Parts that the rows are divided into.
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
    found = cross_validate(
        task,
        table.experts,
        folds,
        table.seed,
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
        score = f"{told['score']:.3f} ± {told['spread']:.3f}"
        rows.append([name, score, f"{told['error']:.4g}", f"{told['terms']:,.0f}"])
        rows[-1] += [rules, bits, f"{told['seconds']:.1f}"]
    print(
        f"{table.data.name}: mean over {folds} folds of {len(task.y):,} rows; ± is between folds\n"
    )
    print_table(rows)
    return 0


def cross_validate(
    task: Task,
    experts: int,
    folds: int,
    seed: int,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: bool = False,
) -> dict[str, dict[str, Any]]:
    """Return the mean of every model over all folds; without jobs or scheduler they run here."""
    from functools import partial

    import numpy as np

    from pinfactory.report import COMMITTEE
    from pinfactory.sweep import sweep
    from pinfactory.sweep.futures import IN_PROCESS

    judged = sweep(
        partial(judge_fold, task.frame, task.y, task.classify, experts, folds, seed),
        {"fold": range(folds)},
        jobs=jobs,
        scheduler=IN_PROCESS if jobs is None and scheduler is None else scheduler,
        verbose=progress,
    )
    own = {name: float(np.mean([told[name] for told in judged])) for name in ("bits", "rules")}

    def mean(name: str, number: str) -> float:
        return float(np.mean([told["models"][name][number] for told in judged]))

    return {
        name: {
            "score": mean(name, "score"),
            "spread": float(np.std([told["models"][name]["score"] for told in judged])),
            "error": mean(name, "error"),
            "terms": mean(name, "terms"),
            "seconds": mean(name, "seconds"),
            "bits": own["bits"] if name == COMMITTEE else None,
            "rules": own["rules"] if name == COMMITTEE else None,
        }
        for name in judged[0]["models"]
    }


def judge_fold(
    frame: Any, y: Any, classify: bool, experts: int, folds: int, seed: int, *, fold: int
) -> dict[str, Any]:
    """Return what each model makes of the rows of a fold, learned from all others."""
    import time

    from sklearn.model_selection import KFold, StratifiedKFold

    from pinfactory.report import COMMITTEE, judge, judge_peer, peers

    enough = classify and y.value_counts().min() >= folds
    splits = (StratifiedKFold if enough else KFold)(folds, shuffle=True, random_state=seed)
    rows, others = list(splits.split(frame, y if enough else None))[fold]
    learned, held_out = frame.iloc[rows], frame.iloc[others]
    start, truth = time.process_time(), y.iloc[others].to_numpy()
    ours = make_committee(classify, experts, None, seed, verbose=False).fit(learned, y.iloc[rows])
    seconds = time.process_time() - start
    classes, n_rules = ours.classes_ if classify else None, len(ours.rules())
    found = [judge(COMMITTEE, ours, classes, held_out, truth, seconds)]
    for name, make in peers(classify, seed, n_rules).items():
        known = (learned, y.iloc[rows].to_numpy())
        found.append(judge_peer(name, make, classes, known, (held_out, truth)))
    return {
        "bits": float(ours.information_.selector),
        "rules": n_rules,
        "models": {
            one.name: {n: float(getattr(one, n)) for n in ("score", "error", "terms", "seconds")}
            for one in found
        },
    }
