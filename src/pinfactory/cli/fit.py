"""The command `pinfactory fit`."""

import textwrap
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .tables import Table, Task, print_json, print_table

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
    """Fit a committee to a table; write model.pin, report.html to show, and card.md.

    Parameters
    ----------
    bits
        What the selector may process for each row, in bits; as much as pays by default.
    holdout
        Share of the rows that the model is judged by and does not learn from.
    out
        Folder for the three files; made if it is not there.
    """
    if not 0.0 < holdout < 0.9:
        raise ValueError(f"--holdout must be above 0 and below 0.9, but got {holdout}")
    task = table.task()
    from pinfactory.estimators.card import model_card
    from pinfactory.report import write_model_page

    start = time.process_time()
    committee, judged, held_out = fit_and_judge(
        task, table.experts, bits, holdout, table.seed, progress=not table.json
    )
    seconds = time.process_time() - start
    task.notes.extend(_doubts(committee, judged[0].score))
    out.mkdir(parents=True, exist_ok=True)
    written = {"model": out / "model.pin", "report": out / "report.html", "card": out / "card.md"}
    committee.save(written["model"])
    told: dict[str, Any] = {"source": table.data.name, "notes": task.notes}
    write_model_page(written["report"], committee, *held_out, judged, **told)
    peers = [(j.name, j.score, j.error) for j in judged[1:]]
    card = model_card(committee, *held_out, peers=peers, **told)
    written["card"].write_text(card, encoding="utf-8")
    if table.json:
        print_json(_told(committee, judged, task, seconds) | written)
        return 0
    _print(committee, judged, task, table.data, len(held_out[0]))
    print(f"\n{'  '.join(map(str, written.values()))}")
    return 0


def fit_and_judge(
    task: Task, experts: int, bits: float | None, holdout: float, seed: int, *, progress: bool
) -> tuple[Any, "list[Judgement]", tuple[Any, Any]]:
    """Fit a committee, and a simple and a strong peer, on the same rows; judge all on others."""
    import numpy as np
    from sklearn.model_selection import train_test_split

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
    committee = make_committee(task.classify, experts, bits, seed, verbose=progress).fit(frame, y)
    seconds = time.process_time() - start
    classes = committee.classes_ if task.classify else None
    judged = [judge(COMMITTEE, committee, classes, held_out, truth.to_numpy(), seconds)]
    found = peers(task.classify, seed, len(committee.rules()))
    learned, others = (frame, y.to_numpy()), (held_out, truth.to_numpy())
    judged += [judge_peer(n, found[n], classes, learned, others) for n in (LINEAR, BOOSTING)]
    return committee, judged, (held_out, truth)


def make_committee(
    classify: bool, experts: int, bits: float | None, seed: int, *, verbose: bool
) -> Any:
    """Return a committee with the settings of the command line."""
    from pinfactory import SpecialistClassifier, SpecialistRegressor

    made = SpecialistClassifier if classify else SpecialistRegressor
    return made(experts, selector_bits=bits, random_state=seed, verbose=verbose)


def _doubts(committee: Any, score: float) -> list[str]:
    """Say which column to look at if hardly anything is left unexplained."""
    if score < TOO_GOOD:
        return []
    column = committee.rules()[0].weights[0].column
    return [f"Almost too good: if {column} is known only afterwards, use --without {column}"]


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


def _print(committee: Any, judged: Any, task: Task, data: Path, n_held_out: int) -> None:
    from pinfactory.formats import quantity

    print(f"{data.name}: {len(task.y):,} rows, {len(task.frame.columns)} columns")
    kind, other = ("classes", "numbers") if task.classify else ("numbers", "classes")
    for note in (*task.notes, f"{task.y.name} is taken as {kind}; else use --kind {other}"):
        print(textwrap.fill(note, 79, initial_indent="  ", subsequent_indent="  "))
    print(f"\nOn {n_held_out:,} rows that were held out:")
    measure, error = ("accuracy", "log-loss") if task.classify else ("R²", "mean error")
    rows = [["", measure, error]]
    rows += [[j.name, f"{j.score:.3f}", quantity(j.error, 3)] for j in judged]
    print_table(rows)
    print()
    print(textwrap.fill(committee.verdict_, 79))
    told = committee.information_
    print(
        f"The selector processes {told.selector:.2f} bits a row, the experts {told.experts:.2f}.\n"
    )
    rows = [["expert", "share", "fidelity", "where"]]
    for rule in committee.rules():
        where = textwrap.shorten(rule.where, 52, placeholder=" …")
        rows.append([str(rule.expert), f"{rule.share:.0%}", f"{rule.fidelity:.2f}", where])
    print_table(rows)
