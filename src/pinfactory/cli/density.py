"""The command `pinfactory density`."""

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import tyro

from pinfactory.formats import decimals

from .tables import (
    Count,
    DataFile,
    Flag,
    Json,
    Seed,
    Without,
    make_folder,
    print_json,
    print_table,
    read,
    refuse_unknown,
)


def density(
    data: DataFile,
    experts: Count = 8,
    without: Without = (),
    categories: Flag = False,
    rows: Count = 10,
    seed: Seed = 0,
    out: Annotated[Path, tyro.conf.arg(metavar="MODEL.pin")] = Path("density.pin"),
    json: Json = False,
) -> int:
    """Find groups of rows in a table, and unusual rows.

    Uses columns of numbers, booleans and dates; values may be missing.

    Parameters
    ----------
    experts
        Largest number of groups.
    categories
        Use text columns as well, with an indicator for each category.
    rows
        How many of the most unusual rows to print.
    out
        File for the model.
    """
    from pinfactory import SpecialistMixture
    from pinfactory.callbacks import ProgressBar

    make_folder(out.parent)
    frame = read(data)
    refuse_unknown(data, frame, without)
    frame = frame.drop(columns=list(without))
    used = _used(frame, categories)
    if not len(used.columns) or len(used) < 20:
        raise ValueError(
            f"{data} must have 20 rows and a column of numbers, but has {len(used)} rows and "
            f"{len(used.columns)} such columns" + ("" if categories else ": try --categories")
        )
    if not json:
        _print_used(frame, used, data, categories)
    bar = [] if json else [ProgressBar("fit", "it")]
    mixture = SpecialistMixture(experts, random_state=seed).fit(used, callbacks=bar)
    mixture.save(out)
    found = unusual_rows(mixture, used, rows)
    log_density = mixture.score(used)
    shares = mixture.information_.responsibility
    if json:
        columns = mixture.encoding_.table()
        print_json({"shares": shares, "unusual": found, "columns": columns, "model": out})
        return 0
    groups = ", ".join(f"{share:.0%}" for share in sorted(shares, reverse=True) if share > 0.001)
    print(f"\ngroups: {groups}\nmean log-density {log_density:.2f}\n\nThe most unusual rows:")
    lines = [["row", "bits", "most surprising, given the rest"]]
    for row in found:
        surprise = f"{row['column']} = {row['value']}"[:60]
        lines.append([str(row["row"]), decimals(row["bits"], 1), surprise])
    print_table(lines)
    print("\nRows count from 0; bits: less likely than an average row with the same gaps")
    print(out)
    return 0


def _print_used(frame: Any, used: Any, data: Path, categories: bool) -> None:
    """Say which columns are used, before the time that fitting takes."""
    gaps = int(used.isna().any(axis=1).sum())
    told = f", {gaps:,} rows with gaps" if gaps else ""
    print(f"{data.name}: {len(used):,} rows, {len(used.columns)} columns{told}")
    absent = [str(name) for name in frame.columns if name not in used.columns]
    if absent:
        option = "" if categories else "; --categories uses those of text"
        note = f"left out: {', '.join(absent)}{option}"
        print(textwrap.fill(note, 79, initial_indent="  ", subsequent_indent="  "))
    sys.stdout.flush()  # the bar follows, on another stream


def unusual_rows(mixture: Any, frame: Any, n_rows: int) -> list[dict[str, Any]]:
    """Return the most surprising rows, and in each the value of least p(value | all others).

    That of a number is taken in deviations of its column, so that columns compare.
    """
    import numpy as np

    surprise, encoding = mixture.surprise(frame), mixture.encoding_
    order = np.argsort(-surprise, kind="stable")[:n_rows]
    some = frame.iloc[order]
    numbers, values = encoding.transform(some), encoding.values(some)
    places = [encoding.places(i) for i, c in enumerate(encoding.columns) if c.kind != "left out"]
    columns = [column for column in encoding.columns if column.kind != "left out"]
    log_scale = np.log(np.nanstd(encoding.transform(frame), axis=0) + 1e-12)
    whole, given = mixture.state_.log_density(numbers), np.full((len(order), len(places)), np.inf)
    for k, mine in enumerate(places):
        known = ~np.isnan(numbers[:, mine]).any(axis=1)
        rest = numbers[known]
        rest[:, mine] = np.nan
        others = mixture.state_.log_density(rest) if known.any() else 0.0
        given[known, k] = whole[known] - others + log_scale[mine].sum()
    found = []
    for i, (row, k) in enumerate(zip(order.tolist(), given.argmin(axis=1).tolist(), strict=True)):
        told = {"column": columns[k].label, "value": columns[k].shown(values[k][i])}
        found.append({"row": row, "bits": float(surprise[row])} | told)
    return found


def _used(frame: Any, categories: bool) -> Any:
    """Return the columns that tell rows apart, text only if asked for."""
    from pinfactory.tables import Encoding

    kinds = {"number", "boolean", "category"} if categories else {"number", "boolean"}
    kept = [
        column.name
        for column in Encoding.learn(frame, keep_gaps=True).columns
        if (column.kind in kinds or column.part)
        and column.kind != "left out"
        # A number that is the same in all rows.
        and (column.kind != "number" or column.high > column.low)
    ]
    return frame[list(dict.fromkeys(kept))]
