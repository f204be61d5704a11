"""The command `pinfactory curve`."""

from pathlib import Path
from typing import Annotated

import tyro

from .fit import make_committee
from .tables import Kind, print_json, print_table, read_task


def curve(
    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA.csv")],
    target: Annotated[str, tyro.conf.arg(metavar="COLUMN")],
    experts: Annotated[int, tyro.conf.arg(metavar="N")] = 8,
    points: Annotated[int, tyro.conf.arg(metavar="N")] = 8,
    kind: Kind = "auto",
    without: Annotated[tuple[str, ...], tyro.conf.arg(metavar="[COLUMN …]")] = (),
    seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("curve.svg"),
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> int:
    """Show what accuracy costs in bits, from one price of information to another.

    Parameters
    ----------
    data
        A CSV or Parquet file.
    target
        The column to predict.
    experts
        Number of experts.
    points
        Number of prices.
    kind
        Whether the target is numbers or classes; found out by default.
    without
        Columns to leave out.
    seed
        Source of randomness.
    out
        File for the picture; its ending says of which kind.
    json
        Print JSON.
    """
    if points < 2:
        raise ValueError(f"--points must be at least 2, but got {points}")
    task = read_task(data, target, kind, without)
    import numpy as np

    from pinfactory.estimators import rate_utility_curve

    found = rate_utility_curve(
        make_committee(task.classify, experts, None, seed, verbose=False),
        task.frame,
        task.y,
        beta_selector=np.geomspace(0.5, 50.0, points),
        random_state=seed,
        verbose=not json,
    )
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    found.plot(figure.subplots())
    figure.savefig(out)
    table = found.to_frame().sort_values("beta_selector")
    if json:
        print_json({"points": table.to_dict("records"), "picture": out})
        return 0
    chosen = ["beta_selector", "information_selector", "information_experts", "score"]
    rows = [["price β₁", "selector bits", "expert bits", found.score_name]]
    rows += [
        [f"{beta:.3g}", f"{selector:.2f}", f"{experts:.2f}", f"{score:.3f}"]
        for beta, selector, experts, score in table[chosen].itertuples(index=False)
    ]
    print_table(rows)
    print(f"\n{out}")
    return 0
