"""From the files of a folder to one HTML page that stands alone."""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pinfactory.experiments._registry import Listing
from pinfactory.experiments._storage import write

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Entry:
    """What the page shows of one experiment.

    Attributes
    ----------
    name
        The experiment.
    result
        The content of its result.json; empty if it was not run.
    figure
        Its figure as a data address.
    explorer
        Its interactive part as HTML.
    remark
        Why there is no result.
    """

    name: str
    result: dict[str, Any]
    figure: str = ""
    explorer: str = ""
    remark: str = ""

    @property
    def status(self) -> str:
        """Return "passed", "falls short", "reported" (no targets), "failed" or "not run"."""
        if not self.result:
            return "not run"
        if self.result["error"]:
            return "failed"
        judged = [m["passed"] for m in self.result["measures"] if m["passed"] is not None]
        if not judged:
            return "reported"
        return "passed" if all(judged) else "falls short"

    @property
    def judged(self) -> list[dict[str, Any]]:
        """Return the numbers that stand beside a target or a number of the paper."""
        return [m for m in self.result.get("measures", []) if _stands_beside(m)]

    @property
    def further(self) -> list[dict[str, Any]]:
        """Return the other numbers."""
        return [m for m in self.result.get("measures", []) if not _stands_beside(m)]

    @property
    def targets(self) -> str:
        """Return how many targets are met, such as "3 of 4"."""
        judged = [m["passed"] for m in self.judged if m["passed"] is not None]
        return f"{sum(judged)} of {len(judged)}" if judged else "–"


def _stands_beside(measure: dict[str, Any]) -> bool:
    return measure["target"] is not None or measure["paper"] is not None


def write_page(out: Path, listings: Sequence[Listing]) -> Path:
    """Write `out`/index.html from whatever experiments have left in the folder; return its path.

    The page needs no network: pictures and scripts are inside.

    Parameters
    ----------
    out
        Folder that `pinfactory reproduce` has written to.
    listings
        All experiments, in the order of the page.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("The page needs pip install 'pinfactory[report]'.") from error
    entries = [_entry(out, listing) for listing in listings]
    jinja = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {"number": number, "duration": duration}
    page = jinja.get_template("page.html.j2").render(
        entries=entries,
        plotly=get_plotlyjs() if any(entry.explorer for entry in entries) else "",
        made=datetime.now(UTC),
        version=version("pinfactory"),
    )
    path = out / "index.html"
    write(path, page.encode())
    return path


def _entry(out: Path, listing: Listing) -> Entry:
    folder = out / listing.name
    try:
        result = json.loads((folder / "result.json").read_bytes())
    except (FileNotFoundError, json.JSONDecodeError):
        return Entry(listing.name, {}, remark=listing.remark or "was not run")
    if result["error"]:
        return Entry(listing.name, result)
    figure = base64.b64encode((folder / "figure.svg").read_bytes()).decode()
    explorer = folder / "explore.html"
    return Entry(
        listing.name,
        result,
        f"data:image/svg+xml;base64,{figure}",
        explorer.read_text(encoding="utf-8") if explorer.exists() else "",
    )


def number(value: float | None) -> str:
    """Return a number with the digits that a reader needs."""
    if value is None:
        return "–"
    value = 0.0 if abs(value) < 1e-9 else value
    size = abs(value)
    if size >= 1000:
        text = f"{value:,.0f}"
    elif size >= 10:
        text = f"{value:.{3 - math.floor(math.log10(size))}f}"
    elif size >= 5e-4 or size == 0:
        text = f"{value:.3f}"
    else:
        text = f"{value:.0e}"
    return text.replace("-", "−")


def duration(seconds: float) -> str:
    """Return a time as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
