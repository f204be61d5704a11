"""The command `pinfactory fit`."""

import shlex
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .tables import Table, Task, make_folder, print_json, print_table

if TYPE_CHECKING:
    from pinfactory.report import Judgement

# R², or share of right answers, that is more often a column from the future than a good model.
TOO_GOOD = 0.999


def fit(
    table: Table,
    bits: Annotated[float | None, tyro.conf.arg(metavar="BITS")] = None,
    holdout: Annotated[float, tyro.conf.arg(metavar="SHARE")] = 0.2,
    out: Path = Path("."),
) -> int:
    """Fit a committee to a table; write a model, a report and a model card.

    Parameters
    ----------
    bits
        Limit in bits on the information that the selector uses for a row; none by default.
    holdout
        Share of the rows that is held out for the scores.
    out
        Folder for model.pin, report.html and card.md; created if missing.
    """
    if not 0.0 < holdout < 0.9:
        raise ValueError(f"--holdout must be above 0 and below 0.9, but got {holdout}")
    task = table.task()
    if round(holdout * len(task.y)) < 2:
        raise ValueError(f"--holdout must leave 2 of the {len(task.y)} rows out, but got {holdout}")
    if table.experts > len(task.y):
        raise ValueError(
            f"--experts must be at most the number of rows, {len(task.y)}, but got {table.experts}"
        )
    make_folder(out)
    if not table.json:
        _print_task(task, table.data)
    from pinfactory.estimators.card import model_card
    from pinfactory.report import write_model_page
    from pinfactory.sweep.store import write_file

    start = time.process_time()
    committee, judged, held_out = fit_and_judge(
        task, table.experts, bits, holdout, table.seed, progress=not table.json
    )
    seconds = time.process_time() - start
    doubts = [*_left_out(committee), *_doubts(committee, judged[0].score)]
    task.notes.extend(doubts)
    written = {"model": out / "model.pin", "report": out / "report.html", "card": out / "card.md"}
    committee.save(written["model"])
    if not table.json:
        print("writing the report …", file=sys.stderr)
    told: dict[str, Any] = {"source": table.data.name, "notes": task.notes}
    write_model_page(written["report"], committee, *held_out, judged, **told)
    peers = [(j.name, j.score, j.error) for j in judged[1:]]
    card = model_card(committee, *held_out, peers=peers, **told)
    write_file(written["card"], card.encode())
    if table.json:
        print_json(_told(committee, judged, task, seconds) | written)
        return 0
    _print(committee, judged, task, held_out[1], doubts)
    print(f"\n{'  '.join(map(str, written.values()))}")
    return 0


def fit_and_judge(
    task: Task, experts: int, bits: float | None, holdout: float, seed: int, *, progress: bool
) -> tuple[Any, "list[Judgement]", tuple[Any, Any]]:
    """Fit a committee, and a simple and a strong peer, on the same rows; judge all on others."""
    import numpy as np
    from sklearn.model_selection import train_test_split

    from pinfactory.callbacks import ProgressBar
    from pinfactory.report import BOOSTING, COMMITTEE, LINEAR, judge, judge_peer, peers

    common = task.classify and task.y.value_counts().min() >= 2
    rows, others = train_test_split(
        np.arange(len(task.y)),
        test_size=holdout,
        random_state=seed,
        stratify=task.y if common else None,
    )
    frame, y = task.frame.iloc[rows], task.y.iloc[rows]
    held_out, truth = task.frame.iloc[others], task.y.iloc[others]
    start = time.process_time()
    committee = make_committee(task.classify, experts, bits, seed)
    committee.fit(frame, y, callbacks=[ProgressBar("fit")] if progress else [])
    seconds = time.process_time() - start
    if progress:
        print(f"fitting {LINEAR} and {BOOSTING} for comparison …", file=sys.stderr)
    classes = committee.classes_ if task.classify else None
    judged = [judge(COMMITTEE, committee, classes, held_out, truth.to_numpy(), seconds)]
    found = peers(task.classify, seed, len(committee.rules()))
    learned, others = (frame, y.to_numpy()), (held_out, truth.to_numpy())
    judged += [judge_peer(n, found[n], classes, learned, others) for n in (LINEAR, BOOSTING)]
    return committee, judged, (held_out, truth)


def make_committee(classify: bool, experts: int, bits: float | None, seed: int) -> Any:
    """Return a committee with the settings of the command line."""
    from pinfactory import SpecialistClassifier, SpecialistRegressor

    made = SpecialistClassifier if classify else SpecialistRegressor
    return made(experts, selector_bits=bits, random_state=seed)


def _left_out(committee: Any) -> list[str]:
    """Name the columns that the committee has no use for, with the reason."""
    gone = [column for column in committee.encoding_.columns if column.kind == "left out"]
    told = ", ".join(f"{column.label} ({column.note})" for column in gone)
    return [f"Left out: {told}"] if gone else []


def _doubts(committee: Any, score: float) -> list[str]:
    """Say which column to look at if hardly anything is left unexplained."""
    if score < TOO_GOOD:
        return []
    label = committee.rules()[0].weights[0].column
    column = next(c.name for c in committee.encoding_.columns if c.label == label)
    option = f"--without {shlex.quote(column)}"
    return [f"Almost too good: if {column} is known only afterwards, use {option}"]


def _told(committee: Any, judged: Any, task: Task, seconds: float) -> dict[str, Any]:
    rules = [asdict(rule) for rule in committee.rules()]
    return {
        "kind": "classes" if task.classify else "numbers",
        "notes": task.notes,
        "verdict": committee.verdict_,
        "selector_bits": committee.information_.selector,
        "expert_bits": committee.information_.experts,
        "held_out": judged,
        "rules": rules,
        "columns": committee.encoding_.table(),
        "processor_seconds": seconds,
    }


def _print_task(task: Task, data: Path) -> None:
    """Say what was read, before the time that fitting takes."""
    print(f"{data.name}: {len(task.y):,} rows, {len(task.frame.columns)} columns")
    if not task.classify:
        kind = "numbers; if they are labels, use --kind classes"
    else:
        kind = f"{task.y.nunique()} classes"
        kind += "; if they are quantities, use --kind numbers" if task.y.dtype.kind in "iu" else ""
    _print_notes((*task.notes, f"{task.y.name} has {kind}"))
    sys.stdout.flush()  # the bar follows, on another stream


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(textwrap.fill(note, 79, initial_indent="  ", subsequent_indent="  "))


def _print(committee: Any, judged: Any, task: Task, truth: Any, doubts: Sequence[str]) -> None:
    from pinfactory.estimators.card import usual_answer
    from pinfactory.formats import decimals, quantity

    _print_notes(doubts)
    print(f"\nOn {len(truth):,} rows that were held out:")
    measure, error = ("accuracy", "log-loss") if task.classify else ("R²", "mean error")
    rows = [["", measure, error]]
    rows += [[j.name, decimals(j.score, 3), quantity(j.error, 3)] for j in judged]
    print_table(rows)
    if task.classify:
        print(f"\n{usual_answer(truth)}")
    print()
    print(textwrap.fill(committee.verdict_, 79))
    told = committee.information_
    print(
        f"The selector processes {told.selector:.2f} bits a row, the experts {told.experts:.2f}.\n"
    )
    rows = [["expert", "share", "fidelity", "where"]]
    for rule in committee.rules():
        where, *more = textwrap.wrap(rule.where, 52, break_on_hyphens=False)
        rows.append([str(rule.expert), f"{rule.share:.0%}", f"{rule.fidelity:.2f}", where])
        rows += [["", "", "", line] for line in more]
    print_table(rows)
