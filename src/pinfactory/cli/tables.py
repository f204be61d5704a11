"""What the commands about tables share: reading, checking, and printing."""

import difflib
import json
import shlex
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro

Kind = Literal["auto", "numbers", "classes"]
# Numbers may be as large, and targets may differ by as little as the inverse.
MOST = 1e100

# Parameters that several commands have, with their help.
DataFile = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="DATA.csv", help="A CSV or Parquet file."),
]
ModelFile = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="MODEL", help="What `pinfactory fit` has written."),
]
Without = Annotated[
    tuple[str, ...],
    tyro.conf.arg(
        metavar="[COLUMN …]",
        help="Columns to leave out, for example those known only afterwards.",
    ),
]
Count = Annotated[int, tyro.conf.arg(metavar="N")]
Seed = Annotated[int, tyro.conf.arg(metavar="N", help="Source of randomness.")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Json = Annotated[Flag, tyro.conf.arg(help="Print JSON.")]


@dataclass(frozen=True)
class TableArguments:
    """A table, what is to be predicted, and how the result is shown."""

    data: DataFile
    target: Annotated[str, tyro.conf.arg(metavar="COLUMN", help="The column to predict.")]
    experts: Annotated[int, tyro.conf.arg(metavar="N", help="Largest number of experts.")] = 8
    kind: Annotated[
        Kind,
        tyro.conf.arg(help="Whether the target is numbers or classes; detected by default."),
    ] = "auto"
    without: Without = ()
    seed: Seed = 0
    json: Json = False

    def task(self) -> "Task":
        """Read the table."""
        return read_task(self.data, self.target, self.kind, self.without)


# The arguments stand beside those of a command itself, without a name before them.
Table = Annotated[TableArguments, tyro.conf.arg(name="")]


class Task(NamedTuple):
    """A table with what is to be predicted."""

    frame: Any  # the columns to predict from
    y: Any  # the target, as a named series
    classify: bool  # whether it is classes
    notes: list[str]  # what a user should know of how the table was taken


def read_task(path: Path, target: str, kind: Kind = "auto", without: tuple[str, ...] = ()) -> Task:
    """Read a table and find out what kind of problem it is."""
    frame, notes = read(path), []
    # Row numbers of this name have been left out in reading.
    without = tuple(name for name in without if name != "rownames" or name in frame)
    refuse_unknown(path, frame, (target, *without))
    for name in _row_numbers(frame.drop(columns=[target, *without])):
        option = f"--without {shlex.quote(name)}"
        notes.append(f"{name} numbers the rows; if it says nothing else, use {option}")
    for name in frame.columns.drop([n for n in without if n != target]):
        if told := _written(frame[name]):
            notes.append(f"{name} is read as {told}")
    gone = int(frame[target].isna().sum())
    if gone:
        told = "1 row" if gone == 1 else f"{gone:,} rows"
        notes.append(f"{told} without {target} left out")
        frame = frame[frame[target].notna()].reset_index(drop=True)
    y = _numbers(frame.pop(target), kind)
    frame = frame.drop(columns=[name for name in without if name != target])
    if not len(frame.columns):
        raise ValueError(f"{path} must have a column beside {target!r} to predict from")
    _refuse_extreme(frame)
    if len(frame) < 20:
        raise ValueError(f"{path} must have at least 20 rows with {target!r}, but has {len(frame)}")
    if y.dtype.kind in "mM":
        raise ValueError(
            f"{target!r} holds dates or durations: predict numbers, such as days since one of them"
        )
    classify = kind == "classes" or (kind == "auto" and not is_number(y))
    if not classify:
        if y.dtype.kind not in "fiub":
            raise ValueError(f"{target!r} must hold numbers for --kind numbers; try --kind classes")
        y = y.astype(float)
        _refuse_extreme(y.to_frame())
        if 0.0 < y.max() - y.min() < 1.0 / MOST:
            raise ValueError(
                f"{target!r} must differ by more than {1.0 / MOST:g}; take another unit"
            )
    else:
        if kind == "auto":
            _refuse_nearly_numbers(y)
        y = labels(y)
    counts = y.value_counts()
    if len(counts) < 2:
        raise ValueError(f"{target!r} must differ between rows, but is always {y.tolist()[0]!r}")
    if classify and len(counts) > max(20, len(y) // 10):
        raise ValueError(
            f"{target!r} has {len(counts):,} different values in {len(y):,} rows: too many classes"
        )
    if classify and counts.iloc[1] < 2:
        raise ValueError(
            f"{target!r} must have two classes of at least 2 rows, but only "
            f"{counts.index.tolist()[0]!r} has"
        )
    return Task(frame, y, classify, notes)


def _row_numbers(frame: Any) -> list[str]:
    """Return the columns of whole numbers that count the rows, in any order."""
    whole = frame.select_dtypes("integer")
    spans = whole.max() - whole.min() + 1
    return [n for n in whole.columns if whole[n].is_unique and spans[n] <= 1.01 * len(frame)]


def _written(column: Any) -> str:
    """Return how text that is dates or numbers is written, if that can be told."""
    from pinfactory.tables.text_dates import date_orders
    from pinfactory.tables.text_numbers import number_forms

    known = [] if column.dtype.kind in "fiubmM" else column.dropna().astype(str).tolist()
    found = {"dates, ": date_orders(known), "numbers, written as ": number_forms(known)}
    return next((kind + of[0] for kind, of in found.items() if len(of) == 1), "")


def _numbers(y: Any, kind: Kind) -> Any:
    """Return a target of text that is numbers as such."""
    import pandas as pd

    from pinfactory.tables.text_numbers import number_forms, parse_numbers

    if y.dtype.kind in "fiubmM" or kind == "classes":
        return y
    words = y.to_numpy(str).astype(object)
    forms = number_forms(words)
    return pd.Series(parse_numbers(words, forms[0]), name=y.name) if len(forms) == 1 else y


def _refuse_extreme(frame: Any) -> None:
    """Refuse numbers whose squares, which the peers take, are none."""
    for name, column in frame.select_dtypes("number").items():
        most = column.abs().max()
        if most > MOST:
            raise ValueError(
                f"{name!r} must hold numbers of at most {MOST:g}, but has {most:.3g}: empty such "
                "cells, or take another unit"
            )


def _refuse_nearly_numbers(y: Any) -> None:
    """Refuse text most of which are numbers: the others are mistakes, or stand for a gap."""
    from pinfactory.tables import no_number

    if y.dtype.kind not in "fiub" and (odd := no_number(y.to_numpy())):
        raise ValueError(
            f"{y.name!r} has numbers but for {odd!r}: correct or empty such cells, or choose "
            "--kind classes"
        )


def labels(y: Any) -> Any:
    """Return classes as a committee takes them: whole numbers and truths, all others as text."""
    if y.dtype.kind == "f" and (y % 1 == 0).all():
        return y.astype(int)  # a gap in the file has made them fractions
    return y if y.dtype.kind in "iub" else y.astype(str).astype(object)


def refuse_unknown(path: Path, frame: Any, names: tuple[str, ...]) -> None:
    """Refuse columns that a table does not have, by name."""
    for name in names:
        if name not in frame.columns:
            lower = {known.lower(): known for known in frame.columns}
            near = difflib.get_close_matches(name.lower(), lower, 1)
            meant = f"; did you mean {lower[near[0]]!r}?" if near else ""
            raise ValueError(
                f"{path} has no column {name!r}; it has {_listed(list(frame.columns))}{meant}"
            )


def read(path: Path) -> Any:
    """Read a table, with an error for users of the command line."""
    from pinfactory.tables import read_frame

    try:
        return read_frame(path)
    except ImportError as error:
        raise ValueError(str(error)) from error


def load_model(path: Path) -> Any:
    """Load a committee that was fitted on a table."""
    from pinfactory import load
    from pinfactory.persistence import ModelFileError

    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}: write one with pinfactory fit")
    try:
        model = load(path)
    except ModelFileError as error:
        raise ValueError(str(error)) from error
    if not (hasattr(model, "encoding_") and hasattr(model, "rules")):
        raise ValueError(f"{path} must hold a committee fitted on a table, but is another model")
    return model


def is_number(y: Any) -> bool:
    """Whether a target is a number: two values, text and truths are classes."""
    return y.dtype.kind in "fiu" and y.nunique() > 2


def print_table(rows: list[list[str]], *, left: int = 1) -> None:
    """Print rows of text with a head; the first columns are flush left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [
            f"{cell:<{width}}" if i < left or i == len(row) - 1 else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def print_json(value: Any) -> None:
    """Print a value as JSON; what is not finite is null."""
    print(json.dumps(_plain(value), ensure_ascii=False, indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")


def make_folder(folder: Path) -> None:
    """Make a folder for what is written at the end, so that it does not fail only then."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{str(folder)!r} must be a folder to write to, but {error}") from error
