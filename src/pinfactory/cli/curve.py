"""The command `pinfactory curve`."""

import io
from pathlib import Path
from typing import Annotated

import tyro

from pinfactory.formats import decimals

from .fit import make_committee
from .tables import Count, Table, make_folder, print_json, print_table


def curve(
    table: Table,
    points: Count = 8,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE")] = Path("curve.svg"),
) -> int:
    """Show what accuracy costs in bits, at several prices of information.

    Parameters
    ----------
    points
        Number of prices.
    out
        File for the picture; its ending says of which kind.
    """
    if points < 2:
        raise ValueError(f"--points must be at least 2, but got {points}")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    kind = out.suffix.lower().removeprefix(".")
    if kind not in (kinds := figure.canvas.get_supported_filetypes()):
        raise ValueError(f"--out must end in one of {', '.join(kinds)}, but got {str(out)!r}")
    make_folder(out.parent)
    task = table.task()
    import numpy as np

    from pinfactory.estimators import rate_utility_curve
    from pinfactory.sweep.store import write_file

    found = rate_utility_curve(
        make_committee(task.classify, table.experts, None, table.seed),
        task.frame,
        task.y,
        beta_selector=np.geomspace(0.5, 50.0, points),
        random_state=table.seed,
        verbose=not table.json,
    )
    found.plot(figure.subplots())
    figure.savefig(stream := io.BytesIO(), format=kind)
    write_file(out, stream.getvalue())
    rates = found.to_frame().sort_values("beta_selector")
    if table.json:
        print_json({"points": rates.to_dict("records"), "picture": out})
        return 0
    chosen = ["beta_selector", "information_selector", "information_experts", "score"]
    rates = rates[chosen].groupby("beta_selector").mean().reset_index()
    rows = [["β₁", "selector bits", "expert bits", found.score_name]]
    rows += [
        [f"{beta:.3g}", f"{selector:.2f}", f"{experts:.2f}", decimals(score, 3)]
        for beta, selector, experts, score in rates.itertuples(index=False)
    ]
    print_table(rows)
    seeds = len(set(found.seed.tolist()))
    print(f"\nMeans of {seeds} trainings, scored on held-out rows; 1/β₁ is the price of a nat")
    print(out)
    return 0
