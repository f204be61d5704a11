"""The command `pinfactory compare`."""

from typing import Any

from .fit import make_committee
from .tables import Count, Table, Task, print_json, print_table


def compare(table: Table, folds: Count = 5) -> int:
    """Compare committees with other models of a table, by cross-validation.

    A line, a decision tree with as many leaves as there are experts, boosting, and if they are
    installed Cubist (of numbers) and EBM.

    Parameters
    ----------
    folds
        Parts that the rows are divided into.
    """
    if folds < 2:
        raise ValueError(f"--folds must be at least 2, but got {folds}")
    task = table.task()
    found = cross_validate(task, table.experts, folds, table.seed, progress=not table.json)
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
    task: Task, experts: int, folds: int, seed: int, *, progress: bool
) -> dict[str, dict[str, Any]]:
    """Return the mean of every model over all folds."""
    import time

    import numpy as np
    from sklearn.model_selection import KFold, StratifiedKFold
    from tqdm.auto import tqdm

    from pinfactory.report import COMMITTEE, judge, judge_peer, peers

    enough = task.classify and task.y.value_counts().min() >= folds
    splits = (StratifiedKFold if enough else KFold)(folds, shuffle=True, random_state=seed)
    results: dict[str, list[Any]] = {}
    information = []
    names = [COMMITTEE, *peers(task.classify, seed, 2)]
    with tqdm(total=folds * len(names), disable=not progress, desc="compare") as bar:
        for rows, others in splits.split(task.frame, task.y if enough else None):
            frame, y = task.frame.iloc[rows], task.y.iloc[rows]
            start, truth = time.process_time(), task.y.iloc[others].to_numpy()
            ours = make_committee(task.classify, experts, None, seed, verbose=False).fit(frame, y)
            seconds = time.process_time() - start
            classes = ours.classes_ if task.classify else None
            held_out = task.frame.iloc[others]
            results.setdefault(COMMITTEE, []).append(
                judge(COMMITTEE, ours, classes, held_out, truth, seconds)
            )
            information.append((ours.information_.selector, len(ours.rules())))
            bar.update()
            for name, make in peers(task.classify, seed, len(ours.rules())).items():
                learned = frame, y.to_numpy()
                told = judge_peer(name, make, classes, learned, (held_out, truth))
                results.setdefault(name, []).append(told)
                bar.update()
    bits, rules = np.mean(information, axis=0)
    return {
        name: {
            "score": float(np.mean([j.score for j in told])),
            "spread": float(np.std([j.score for j in told])),
            "error": float(np.mean([j.error for j in told])),
            "terms": float(np.mean([j.terms for j in told])),
            "seconds": float(np.mean([j.seconds for j in told])),
            "bits": float(bits) if name == COMMITTEE else None,
            "rules": float(rules) if name == COMMITTEE else None,
        }
        for name, told in results.items()
    }
