"""One page that explains a fitted committee to readers who do not know the method."""

import warnings
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from pinfactory.estimators.card import usual_answer
from pinfactory.estimators.tempering import tempered_curve
from pinfactory.experiments.png import shrink_svg
from pinfactory.formats import quantity
from pinfactory.plotting import expert_colours
from pinfactory.sweep.store import write_file

from ._page import address, render
from .peers import Judgement

# Rows that are drawn and looked at; more would make the page large.
MOST_DRAWN = 600
# Columns of a rule, and of a row's explanation, that are shown at once.
MOST_COLUMNS = 6
INTERVALS = (0.5, 0.8, 0.95)


def write_model_page(
    path: Path,
    committee: Any,
    X: Any,
    y: Any,
    judged: Sequence[Judgement],
    *,
    source: str = "",
    notes: Sequence[str] = (),
) -> Path:
    """Write a page about a committee; return its path.

    Parameters
    ----------
    path
        Where to write.
    committee
        A committee fitted on a data frame.
    X, y
        Rows that it has not seen, as a frame and series of pandas.
    judged
        How good it and others are on these rows, itself first.
    source
        Name of the table.
    notes
        What a reader should know of how the table was taken.
    """
    classify = hasattr(committee, "classes_")
    drawn = np.linspace(0, len(X) - 1, min(len(X), MOST_DRAWN)).round().astype(int)
    some, truth = X.iloc[drawn], y.iloc[drawn]
    colours = expert_colours(committee.n_experts_)
    page = render(
        "model.html.j2",
        source=source,
        target=committee.target_name_ or "the target",
        notes=notes,
        judged=judged,
        sentence=_sentence(judged, classify),
        usual=usual_answer(y) if classify else "",
        classify=classify,
        n_held_out=len(X),
        verdict=committee.verdict_,
        gain=committee.gain_,
        effective=committee.effective_experts_,
        classes=[str(label) for label in committee.classes_] if classify else [],
        information=committee.information_,
        rules=committee.rules(),
        most=MOST_COLUMNS,
        colours=["#" + "".join(f"{round(255 * c):02x}" for c in rgb) for rgb in colours],
        partition=_picture(lambda ax: _draw_partition(committee, some, ax), (8.6, 4.6)),
        calibration=_picture(lambda ax: _draw_calibration(committee, X, y, ax), (8.6, 3.9), 2),
        coverage=None if classify else _coverage(committee, X, y),
        row=_example(committee, some, truth),
        bought=tempered_curve(committee, X, y),
        columns=committee.encoding_.table(),
        settings={n: v for n, v in committee.get_params().items() if n != "verbose"},
    )
    write_file(path, page)
    return path


def _sentence(judged: Sequence[Judgement], classify: bool) -> str:
    """Say in one sentence how good the committee is."""
    ours, line, strong = judged
    if classify:
        wrong = [100.0 * (1.0 - j.score) for j in judged]
        told = f"It is wrong in {wrong[0]:.1f} % of the rows"
        return f"{told}; one line in {wrong[1]:.1f} %, boosted trees in {wrong[2]:.1f} %."
    told = f"It is off by {quantity(ours.error, 3)} on average"
    rest = f"one line by {quantity(line.error, 3)}, boosted trees by {quantity(strong.error, 3)}"
    return f"{told}; {rest}."


def _picture(draw: Callable[[Any], None], size: tuple[float, float], n_axes: int = 1) -> str:
    """Return a picture as an address; text of the data is never read as a formula."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"text.parse_math": False, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure.subplots(1, n_axes))
        stream = BytesIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has other fonts
            figure.savefig(stream, format="svg", dpi=110, metadata={"Date": None})
    return address(shrink_svg(stream.getvalue()))


def _draw_partition(committee: Any, X: Any, ax: Any) -> None:
    from pinfactory.plotting import PartitionDisplay

    PartitionDisplay.from_estimator(committee, X, grid_resolution=120, ax=ax)


def _draw_calibration(committee: Any, X: Any, y: Any, axes: Any) -> None:
    if hasattr(committee, "classes_"):
        _draw_reliability(committee, X, y.to_numpy(), axes)
        return
    first, second = axes
    mean, owner = committee.predict(X), committee.assign(X)
    some = np.linspace(0, len(X) - 1, min(len(X), MOST_DRAWN)).round().astype(int)
    colours, truth = expert_colours(committee.n_experts_), y.to_numpy(float)
    first.scatter(mean[some], truth[some], s=9, c=colours[owner[some]], linewidth=0, alpha=0.8)
    ends = np.quantile(np.append(mean, truth), (0.0, 1.0))
    first.plot(ends, ends, color="#777777", lw=1)
    first.set(xlabel="predicted", ylabel="true", title="Predicted and true")
    level = np.linspace(0.02, 0.98, 49)
    inside = 2.0 * np.abs(committee.cdf(X, truth) - 0.5)
    second.plot(level, [(inside <= p).mean() for p in level], color="#222222", lw=1.6)
    second.plot([0, 1], [0, 1], color="#777777", lw=1)
    second.set(
        xlabel="share of true values an interval should contain",
        ylabel="share it contains",
        title="Coverage of the intervals",
    )
    first.locator_params(nbins=5)
    for axis in (first.xaxis, first.yaxis):
        axis.set_major_formatter(lambda value, _: quantity(value))
    _frameless(axes)


def _draw_reliability(committee: Any, X: Any, y: np.ndarray, axes: Any) -> None:
    """Draw how often an answer is right against how probable it is said to be."""
    proba = committee.predict_proba(X)
    right, sure = committee.classes_[proba.argmax(axis=1)] == y, proba.max(axis=1)
    edges = np.unique(np.quantile(sure, np.linspace(0, 1, 11)))
    if len(edges) < 2:
        edges = np.asarray([0.0, 1.0])
    bins = np.clip(np.digitize(sure, edges[1:-1]), 0, len(edges) - 2)
    kept = [b for b in range(len(edges) - 1) if (bins == b).any()]
    said = [sure[bins == b].mean() for b in kept]
    found = np.asarray([right[bins == b].mean() for b in kept])
    count = np.asarray([(bins == b).sum() for b in kept])
    error = 2.0 * np.sqrt(found * (1.0 - found) / count)
    error = np.stack([error, np.minimum(error, 1.0 - found)])
    axes[0].errorbar(said, found, error, fmt="o-", color="#222222", ms=4)
    low = min(said[0], found.min()) - 0.03
    axes[0].plot([low, 1], [low, 1], color="#777777", lw=1)
    axes[0].set(
        xlabel="probability of the answer", ylabel="share of right answers", title="Calibration"
    )
    axes[1].hist(sure, 20, range=(min(0.9, sure.min()), 1.0), color="#0072B2")
    axes[1].set(
        xlabel="probability of the answer", ylabel="rows", title="Probabilities of the answers"
    )
    _frameless(axes)


def _frameless(axes: Any) -> None:
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)


def _coverage(committee: Any, X: Any, y: Any) -> list[tuple[float, float]]:
    inside = 2.0 * np.abs(committee.cdf(X, y.to_numpy(float)) - 0.5)
    return [(level, float((inside <= level).mean())) for level in INTERVALS]


def _example(committee: Any, X: Any, y: Any) -> dict[str, Any]:
    """Explain the row whose expert is surest among those of the second-busiest expert."""
    share = committee.responsibilities(X)
    chosen = np.argsort(-share.mean(axis=0))[: min(2, share.shape[1])][-1]
    # A row that clearly belongs to one expert, but is not the clearest of all.
    row = int(np.argsort(share[:, chosen], kind="stable")[-max(1, len(share) // 20)])
    told = committee.explain_row(X.iloc[row : row + 1])
    shown = told.contributions[:MOST_COLUMNS]
    largest = max((abs(part.amount) for part in shown), default=1.0) or 1.0
    truth = y.iloc[row]
    return {
        "told": told,
        "truth": str(truth) if is_classifier(committee) else quantity(float(truth), 4),
        "bars": [(part, 100.0 * abs(part.amount) / largest) for part in shown],
        "rest": sum(part.amount for part in told.contributions[MOST_COLUMNS:]),
        "n_rest": max(0, len(told.contributions) - MOST_COLUMNS),
        "total": told.base + sum(part.amount for part in told.contributions),
    }
