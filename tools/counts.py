"""Counts of what a tool of this folder has tried, as a result for the pages (`results/NAME.json`).

The format is that of `pinfactory reproduce`. Each kind of thing that was tried is a row, and its
outcomes are columns; the rows of other kinds stay, so that kinds can be tried one by one. The
settings tell for each kind how many were asked for, from which seed on, and the commit.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pinfactory.experiments import Measure, commit, processor, read_result
from pinfactory.sweep.store import write_file


@dataclass(frozen=True)
class Trial:
    """What a tool tries, and the command that does it."""

    name: str
    title: str
    about: str
    command: str


def recorded(folder: Path, trial: Trial, kind: str) -> dict[str, int]:
    """Return the outcomes of a kind that are recorded, with which a tool goes on."""
    result = read_result(folder / f"{trial.name}.json") or {"measures": []}
    names = {m["name"].partition(", "): int(m["ours"]) for m in result["measures"]}
    return {outcome: number for (outcome, _, of), number in names.items() if of == kind}


def record(
    folder: Path, trial: Trial, kind: str, seed: int, outcomes: Mapping[str, float]
) -> dict[str, Any]:
    """Write the outcomes of one kind beside those of the others; return the result.

    `outcomes` has the number of trials as "tried", and the "faults", which are promised to be 0.
    """
    path = folder / f"{trial.name}.json"
    before = read_result(path) or {"settings": {}, "measures": []}
    others = [m for m in before["measures"] if m["name"].partition(", ")[2] != kind]
    # The only promise is that there are no faults.
    measures = [
        Measure(
            f"{outcome}, {kind}",
            float(number),
            target=0.0 if outcome == "faults" else None,
            higher_is_better=False,
        )
        for outcome, number in outcomes.items()
    ]
    made_of = {"tried": outcomes["tried"], "seed": seed, "commit": commit()}
    result = {
        "name": trial.name,
        "kind": "benchmark",
        "title": trial.title,
        "about": trial.about,
        "command": trial.command,
        "place": "",
        "claim": "",
        "scale": "",
        "settings": before["settings"] | {kind: made_of},
        "seeds": 1,
        "skipped": {},
        "versions": {name: version(name) for name in ("pinfactory", "jax", "numpy")},
        "commit": commit(),
        "processor": processor(),
        "cores": 1,
        "measures": [*others, *(asdict(m) | {"passed": m.passed} for m in measures)],
        "seconds": 0.0,
        "cpu_seconds": 0.0,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": {},
        "error": "",
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(result, indent=1).encode())
    return result
