"""The command `pinfactory explain`."""

import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from .tables import Flag, Json, ModelFile, load_model, print_json, read


def explain(
    model: ModelFile,
    data: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA.csv]")] = None,
    row: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    columns: Flag = False,
    json: Json = False,
) -> int:
    """Print the rules of a model, or why it answers to a row as it does.

    Parameters
    ----------
    data
        The table that `--row` counts the rows of.
    row
        Which row to explain, the first being 0.
    columns
        Print what was done to each column.
    """
    committee = load_model(model)
    if row is not None:
        if data is None:
            raise ValueError(f"which table? pinfactory explain {model} DATA.csv --row {row}")
        frame = read(data)
        if not 0 <= row < len(frame):
            raise ValueError(f"--row must be from 0 to {len(frame) - 1:,}, but got {row}")
        told = committee.explain_row(frame.iloc[row : row + 1])
        print_json(asdict(told)) if json else print(told)
        return 0
    rules, encoding = committee.rules(), committee.encoding_
    if json:
        print_json({"rules": [asdict(rule) for rule in rules], "columns": encoding.table()})
        return 0
    if columns:
        print(encoding)
        return 0
    print(textwrap.fill(committee.verdict_, 79), end="\n\n")
    print(rules)
    return 0
