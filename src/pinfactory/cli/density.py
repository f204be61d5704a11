"""The command `pinfactory density`."""

from pathlib import Path
from typing import Annotated

import tyro

from .tables import print_json, print_table, read


def density(
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA.csv")],
    experts: Annotated[int, tyro.conf.arg(metavar="N")] = 8,
    without: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[COLUMN …]")] = (),
    rows: Annotated[int, tyro.conf.arg(metavar="N")] = 10,
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    out: Annotated[Path, tyro.conf.arg(metavar="MODEL.pin")] = Path("density.pin"),
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Find the groups of a table's numbers, and the rows that are like no other.

    Columns of numbers are used, and rows in which all of them are known.

    Parameters
    ----------
    data
        A CSV or Parquet file.
    experts
        The most groups there may be.
    without
        Columns to leave out.
    rows
        How many of the most unusual rows to print.
    seed
        Source of randomness.
    out
        File for the model.
    json
        Print JSON.
    """
    import numpy as np

    from pinfactory import SpecialistMixture

    frame = read(data)
    strange = [name for name in without if name not in frame.columns]
    if strange:
        raise ValueError(f"{data} has no column {strange[0]!r}")
    numbers = frame.drop(columns=list(without)).select_dtypes("number")
    numbers = numbers.loc[:, numbers.nunique() > 1]
    known = numbers.dropna()
    if not len(numbers.columns) or len(known) < 20:
        raise ValueError(
            f"{data} must have 20 rows in which all numbers are known, but has {len(known)} with "
            f"{len(numbers.columns)} columns: leave out columns with gaps by --without"
        )
    mixture = SpecialistMixture(experts, random_state=seed).fit(known)
    mixture.save(out)
    log_density = mixture.score_samples(known)
    order = np.argsort(log_density)[:rows]
    scale = known.std()
    far = ((known.iloc[order] - known.mean()) / scale).abs().idxmax(axis=1)
    shares = mixture.information_.responsibility
    found = [
        {
            "row": int(known.index[i]),
            "log_density": float(log_density[i]),
            "column": column,
            "value": float(known[column].iloc[i]),
        }
        for i, column in zip(order.tolist(), far, strict=True)
    ]
    if json:
        print_json({"shares": shares, "unusual": found, "columns": list(known), "model": out})
        return 0
    print(f"{data.name}: {len(known):,} of {len(frame):,} rows, {len(known.columns)} columns")
    groups = ", ".join(f"{share:.0%}" for share in sorted(shares, reverse=True) if share > 0.001)
    print(f"groups: {groups}\nmean log-density {log_density.mean():.2f}\n\nThe most unusual rows:")
    lines = [["row", "log-density", "farthest value"]]
    for told in found:
        lines.append([str(told["row"]), f"{told['log_density']:.1f}"])
        lines[-1].append(f"{told['column']} = {told['value']:.6g}"[:50])
    print_table(lines)
    print(f"\n{out}")
    return 0
