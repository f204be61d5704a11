"""What a process does for an experiment: compute a piece, or judge and draw what is there."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import rc_context
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.figure import Figure

from pinfactory.sweep.processes import n_cores
from pinfactory.sweep.store import Computed, Store, compute, digest, encode, finite, write_file

from ._machine import commit, processor
from .charts import draw_figure
from .experiment import Experiment, Kind, Measure
from .png import shrink_svg

# Scatter plots and groups of lines with more parts than this are stored as pixels in an SVG, with
# so many of them to an inch: pages show figures of 15 inches on about 1,200 pixels.
_MOST_PARTS, _DPI = 60, 80
# So that ticks can be read on such a page.
_LETTERS: dict[Any, Any] = {
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
    "axes.labelsize": 12.0,
}


@dataclass(frozen=True)
class Plan:
    """One experiment with its settings and the folder its files are in."""

    name: str
    module: str
    kind: Kind
    scale: str
    changes: Mapping[str, Any]  # settings that are not those of the scale
    settings: Any
    folder: Path
    libraries: Mapping[str, str]

    @property
    def experiment(self) -> Experiment:
        """Return the module."""
        return cast(Experiment, import_module(self.module))


@dataclass(frozen=True)
class Piece:
    """The task to compute one piece."""

    plan: Plan
    name: str


@dataclass(frozen=True)
class Finish:
    """The task to judge and draw an experiment, or to write down why that is impossible."""

    plan: Plan
    pieces: Mapping[str, Store]
    error: str = ""


def perform(task: Piece | Finish) -> Any:
    """Do a task; a `Finish` returns the measures and the seconds that all pieces took."""
    return _compute(task) if isinstance(task, Piece) else _finish(task)


def _compute(task: Piece) -> Computed:
    return compute(task.plan.experiment.pieces(task.plan.settings)[task.name])


def _finish(task: Finish) -> tuple[list[Measure], float]:
    plan = task.plan
    pieces = {name: store.piece(name) for name, store in task.pieces.items()}
    found = {name: piece for name, piece in pieces.items() if piece is not None}
    times = {key: sum(piece[key] for piece in found.values()) for key in ("seconds", "cpu_seconds")}
    if task.error:
        _write_result(plan, times, error=task.error)
        return [], times["seconds"]
    results = {name: piece["data"] for name, piece in found.items()}
    measures = plan.experiment.measures(results)
    names = [measure.name for measure in measures]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"measures must have different names, but {twice!r} is there twice")
    claim, files = _write_pictures(plan, results)
    _write_result(plan, times, measures, claim, files)
    return measures, times["seconds"]


def _write_pictures(plan: Plan, results: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Draw; return the claim, if there is one, and the digests of all files by name."""
    files: dict[str, bytes] = {}
    claim = ""
    # A fixed salt: the same numbers give the same file.
    with rc_context({"svg.hashsalt": plan.name, **_LETTERS}):
        figure = draw_figure(plan.experiment, results)
        files["figure.svg"], files["figure.png"] = _svg(figure), _saved(figure, "png", dpi=150)
        opening = getattr(plan.experiment, "opening", None)
        if opening is not None:
            claim, figure = opening(results)
            files["opening.svg"] = _svg(figure)
    explore = getattr(plan.experiment, "explore", None)
    if explore is not None:
        files["explore.html"] = explore(results).encode()
    for name, content in files.items():
        write_file(plan.folder / name, content)
    return claim, {name: digest(content) for name, content in files.items()}


def _svg(figure: Figure) -> bytes:
    """Return a small SVG: a path for each of a thousand points makes files of megabytes."""
    for collection in figure.findobj(PathCollection) + figure.findobj(LineCollection):
        n_parts = max(len(collection.get_paths()), np.size(collection.get_offsets()) // 2)
        collection.set_rasterized(n_parts > _MOST_PARTS)
    return shrink_svg(_saved(figure, "svg", dpi=_DPI, metadata={"Date": None}))


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    stream = BytesIO()
    figure.savefig(stream, format=kind, **options)
    return stream.getvalue()


def _write_result(
    plan: Plan,
    times: Mapping[str, float],
    measures: Sequence[Measure] = (),
    claim: str = "",
    files: Mapping[str, str] | None = None,
    error: str = "",
) -> None:
    experiment = plan.experiment
    result = {
        "name": plan.name,
        "kind": plan.kind,
        "title": experiment.TITLE,
        "about": experiment.ABOUT,
        "place": getattr(experiment, "PLACE", ""),
        "claim": claim,
        "scale": plan.scale,
        "changes": dict(plan.changes),
        "settings": asdict(plan.settings),
        "seeds": plan.settings.seeds,
        "skipped": dict(getattr(experiment, "skipped", dict)()),
        "versions": {"pinfactory": version("pinfactory"), **plan.libraries},
        "commit": commit(),
        "processor": processor(),
        "cores": n_cores(),
        "measures": [asdict(measure) | {"passed": measure.passed} for measure in measures],
        **times,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "files": dict(files or {}),
        "error": error,
    }
    write_file(plan.folder / "result.json", encode(finite(result), indent=1))
