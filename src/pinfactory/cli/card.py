"""The command `pinfactory card`."""

from pathlib import Path
from typing import Annotated

import tyro

from .tables import ModelFile, labels, load_model, read


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
        out.write_text(text, encoding="utf-8")
        print(out)
    return 0
