"""The commands about a model that was fitted: `predict`, `explain` and `card`."""

import sys
import textwrap
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from .tables import Flag, Json, ModelFile, labels, load_model, print_json, read


def predict(
    model: ModelFile,
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="NEW.csv")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv")] = None,
    json: Json = False,
) -> int:
    """Predict the rows of a table, with uncertainty and the expert that decided.

    Parameters
    ----------
    data
        A CSV or Parquet file with the columns of the table that the model was fitted to.
    out
        File for the predictions, CSV or Parquet; printed with six digits by default.
    """
    from pinfactory.tables import write_frame

    committee, frame = load_model(model), read(data)
    answers = predictions(committee, frame)
    if out is not None:
        write_frame(answers, out)
        print(f"{len(answers):,} rows  {out}")
    elif json:
        print_json(answers.to_dict("records"))
    else:
        answers.to_csv(sys.stdout, index=False, float_format=_six_digits)
    return 0


def _six_digits(value: float) -> str:
    import numpy as np

    return np.format_float_positional(value, 6, fractional=False, trim="-")


def predictions(committee: Any, frame: Any) -> Any:
    """Return a frame: the answer, how sure it is, and which expert decided."""
    import pandas as pd

    target = committee.target_name_ or "prediction"
    share = committee.responsibilities(frame)
    if hasattr(committee, "classes_"):
        proba = committee.predict_proba(frame)
        columns = {target: committee.classes_[proba.argmax(axis=1)]}
        pairs = zip(committee.classes_, proba.T, strict=True)
        for label, column in pairs:
            columns[_free(f"p({label})", columns)] = column.round(6)
    else:
        mean, std = committee.predict(frame, return_std=True)
        columns = {target: mean, _free("deviation", [target]): std}
    columns |= {
        _free("expert", columns): share.argmax(axis=1),
        _free("p(expert)", columns): share.max(axis=1).round(6),
    }
    return pd.DataFrame(columns)


def _free(name: str, taken: Collection[str]) -> str:
    """Return a name that no column has, such as a target of that name."""
    while name in taken:
        name += "_"
    return name


def explain(
    model: ModelFile,
    data: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA.csv]")] = None,
    row: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    columns: Flag = False,
    json: Json = False,
) -> int:
    """Print the rules of a model, or explain its prediction for one row.

    Parameters
    ----------
    data
        A table with the row to explain.
    row
        Number of the row to explain; the first is 0.
    columns
        Print how each column was encoded.
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


def card(
    model: ModelFile,
    data: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[DATA.csv]")] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.md")] = None,
) -> int:
    """Print a model card in Markdown: data, quality, rules, bits, columns and limits.

    Parameters
    ----------
    data
        Rows that the model has not learned from, with the target, to say how good it is.
    out
        File for the card; printed by default.
    """
    from pinfactory.sweep.store import write_file

    committee = load_model(model)
    X = y = None
    if data is not None:
        frame, target = read(data), committee.target_name_
        if target not in frame.columns:
            raise ValueError(f"{data} must have the column {target!r} to judge the model by")
        X = frame[frame[target].notna()]
        y = labels(X[target]) if hasattr(committee, "classes_") else X[target]
        if not len(X):
            raise ValueError(f"{data} must have rows with {target!r}, but has none")
    text = committee.card(X, y)
    if out is None:
        print(text, end="")
    else:
        write_file(out, text.encode())
        print(out)
    return 0
