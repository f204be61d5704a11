"""The command `pinfactory predict`."""

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from .tables import Json, ModelFile, load_model, print_json, read


def predict(
    model: ModelFile,
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="NEW.csv")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.csv")] = None,
    json: Json = False,
) -> int:
    """Predict the rows of a table, and say who decided.

    Parameters
    ----------
    data
        A CSV or Parquet file with the columns of the table that the model was fitted to.
    out
        File for the predictions, CSV or Parquet; printed by default.
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
        answers.to_csv(sys.stdout, index=False)
    return 0


def predictions(committee: Any, frame: Any) -> Any:
    """Return a frame: the answer, how sure it is, and which expert decided."""
    import pandas as pd

    target = committee.target_name_ or "prediction"
    share = committee.responsibilities(frame)
    if hasattr(committee, "classes_"):
        proba = committee.predict_proba(frame)
        columns = {target: committee.classes_[proba.argmax(axis=1)]}
        pairs = zip(committee.classes_, proba.T, strict=True)
        columns |= {f"p({label})": column.round(6) for label, column in pairs}
    else:
        mean, std = committee.predict(frame, return_std=True)
        columns = {target: mean, "deviation": std}
    who = {"expert": share.argmax(axis=1), "p(expert)": share.max(axis=1).round(6)}
    return pd.DataFrame(columns | who)
