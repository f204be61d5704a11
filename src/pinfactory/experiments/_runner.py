"""Run experiments piece by piece, keep every finished piece, and write result and figure."""

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, cast

from matplotlib import rc_context
from tqdm import tqdm

from ._experiment import Experiment, Measure
from ._registry import Listing
from ._storage import Folder, encode, finite, versions, write

Scale = Literal["quick", "paper"]


@dataclass(frozen=True)
class Outcome:
    """What became of one experiment.

    Attributes
    ----------
    name
        The experiment.
    measures
        Its numbers; none if it failed.
    seconds
        Time that its pieces took, those of earlier runs included.
    error
        What went wrong; empty if nothing did.
    """

    name: str
    measures: Sequence[Measure]
    seconds: float
    error: str = ""


def run(
    listings: Sequence[Listing],
    out: Path,
    *,
    scale: Scale = "quick",
    seeds: int | None = None,
    progress: bool = True,
    report: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run experiments one after the other and write their files below `out`.

    For every experiment the folder `out`/NAME gets result.json, figure.svg, figure.png and the
    pieces; pieces that an earlier run has left there are not computed again. An experiment that
    fails does not keep the others from running.

    Parameters
    ----------
    listings
        The experiments.
    out
        Folder for everything.
    scale
        Which preset of the settings.
    seeds
        Number of seeds instead of the preset's.
    progress
        Whether to show a bar on stderr.
    report
        Called with every outcome as soon as there is one.
    """
    changes = {} if seeds is None else {"seeds": seeds}
    works = [_Work.plan(listing, out, scale, changes) for listing in listings]
    outcomes = []
    total, done = sum(len(work.pieces) for work in works), sum(work.n_stored for work in works)
    with tqdm(
        total=total,
        initial=done,
        unit="piece",
        ncols=79,
        smoothing=0.0,
        disable=None if progress else True,
        bar_format="{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]",
    ) as bar:
        for work in works:
            bar.set_description_str(f"{work.name:>20.20}")
            outcome = work.run(bar)
            outcomes.append(outcome)
            with bar.external_write_mode():
                report(outcome)
    return outcomes


@dataclass(frozen=True)
class _Work:
    """One experiment with its settings, its pieces and the folder they are kept in."""

    name: str
    experiment: Experiment
    scale: Scale
    settings: Any
    pieces: Mapping[str, Callable[[], Any]]
    folder: Folder
    n_stored: int

    @classmethod
    def plan(cls, listing: Listing, out: Path, scale: Scale, changes: Mapping[str, int]) -> "_Work":
        experiment = cast(Experiment, listing.experiment)
        settings = getattr(experiment.Settings, scale)(**changes)
        pieces = experiment.pieces(settings)
        folder = Folder(out, listing.name, settings)
        n_stored = sum(folder.piece(name) is not None for name in pieces)
        return cls(listing.name, experiment, scale, settings, pieces, folder, n_stored)

    def run(self, bar: tqdm) -> Outcome:
        """Compute what is not stored yet, judge, draw; report errors instead of raising them."""
        results: dict[str, Any] = {}
        seconds = 0.0
        try:
            for name, compute in self.pieces.items():
                piece = self.folder.piece(name)
                if piece is None:
                    start = time.perf_counter()
                    data = compute()
                    piece = self.folder.save_piece(name, data, time.perf_counter() - start)
                    bar.update()
                results[name] = piece["data"]
                seconds += piece["seconds"]
            measures = self.experiment.measures(results)
            self._write_pictures(results)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            self._write_result(seconds, [], trace)
            return Outcome(self.name, [], seconds, f"{type(error).__name__}: {error}")
        self._write_result(seconds, measures)
        return Outcome(self.name, measures, seconds)

    def _write_pictures(self, results: Mapping[str, Any]) -> None:
        # A fixed salt and no date: the same numbers give the same file.
        with rc_context({"svg.hashsalt": self.name}):
            figure = self.experiment.draw(results)
            for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 150})):
                stream = BytesIO()
                figure.savefig(stream, format=kind, **options)
                write(self.folder.path / f"figure.{kind}", stream.getvalue())
        explore = getattr(self.experiment, "explore", None)
        if explore is not None:
            fragment = explore(results)
            if not isinstance(fragment, str):  # a Plotly figure
                fragment = fragment.to_html(full_html=False, include_plotlyjs=False)
            write(self.folder.path / "explore.html", fragment.encode())

    def _write_result(self, seconds: float, measures: Sequence[Measure], error: str = "") -> None:
        result = {
            "name": self.name,
            "title": self.experiment.TITLE,
            "about": self.experiment.ABOUT,
            "place": getattr(self.experiment, "PLACE", ""),
            "scale": self.scale,
            "settings": asdict(self.settings),
            "seeds": self.settings.seeds,
            "versions": versions(),
            "measures": [asdict(measure) | {"passed": measure.passed} for measure in measures],
            "seconds": seconds,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "fingerprint": self.folder.fingerprint,
            "error": error,
        }
        write(self.folder.path / "result.json", encode(finite(result)))
