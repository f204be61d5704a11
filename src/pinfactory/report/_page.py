"""From the files of a folder to one HTML page that stands alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pinfactory.experiments import Kind, Listing, command_of, read_checked, read_result
from pinfactory.formats import decimals, duration, number, quantity
from pinfactory.sweep.store import write_file

_HERE = Path(__file__).parent
# What may stand in a data address as it is; line breaks, quotes, %, & and # may not.
_SAFE = " !$'()*+,-./:;<=>?@[]^_{|}~"
# What surrounds an interactive part: the styles of the page, and a script that tells its height.
_FRAMED = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><style>{style}
html, body {{ background: none; margin: 0; }}</style><body>{content}<script>
new ResizeObserver(() => parent.postMessage(document.documentElement.offsetHeight, "*"))
  .observe(document.documentElement);
</script></body></html>"""


@dataclass(frozen=True)
class Entry:
    """What the page shows of one experiment."""

    name: str  # the experiment
    kind: Kind  # figure or benchmark
    result: dict[str, Any]  # the content of its result.json; empty if it was not run
    # Its figure, and the picture of its claim, as data addresses.
    figure: str = ""
    opening: str = ""
    explorer: str = ""  # its interactive part as HTML
    remark: str = ""  # why there is no result
    title: str = ""  # its title, if there is no result that has it

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
    def first(self) -> dict[str, Any] | None:
        """Return the number that stands for all: one of the paper's, one promised, or the first."""
        measures = self.result.get("measures", [])
        for name in ("paper", "target"):
            for measure in measures:
                if measure[name] is not None:
                    return measure
        return measures[0] if measures else None


def _stands_beside(measure: dict[str, Any]) -> bool:
    return any(measure[name] is not None for name in ("target", "paper", "paper_method"))


def write_page(out: Path, listings: Sequence[Listing]) -> Path:
    """Write `out`/index.html from whatever experiments have left in the folder; return its path.

    The page needs no network: pictures and scripts are inside. Files that are not as the run left
    them are not shown.

    Parameters
    ----------
    out
        Folder that `pinfactory reproduce` has written to.
    listings
        All experiments, in the order of the page. Benchmarks that were not run are left out.
    """
    entries = [_entry(out, listing) for listing in listings]
    entries = [entry for entry in entries if entry.result or entry.kind == "figure"]
    page = render(
        "page.html.j2",
        entries=entries,
        opening=next((entry for entry in entries if entry.opening), None),
        measures=[m for entry in entries for m in entry.result.get("measures", [])],
    )
    path = out / "index.html"
    write_file(path, page)
    return path


def render(template: str, **values: Any) -> bytes:
    """Fill a template; everything that is not markup by its type is escaped."""
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ImportError("The page needs pip install 'pinfactory[report]'.") from error
    jinja = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, duration, prose, quantity, decimals, framed, command_of)
    jinja.filters |= {function.__name__: function for function in filters}
    values |= {"made": datetime.now(UTC), "version": version("pinfactory")}
    return jinja.get_template(template).render(**values).encode()


def _entry(out: Path, listing: Listing) -> Entry:
    folder = out / listing.name
    result = read_result(folder / "result.json")
    if result is None or result["name"] != listing.name:
        damaged = (folder / "result.json").exists()
        remark = "its result is damaged: run it again" if damaged else "was not run"
        title = getattr(listing.experiment, "TITLE", listing.name)
        return Entry(listing.name, listing.kind, {}, remark=listing.remark or remark, title=title)
    if result["error"]:
        return Entry(listing.name, listing.kind, result)
    figure = read_checked(folder, result, "figure.svg")
    explorer = read_checked(folder, result, "explore.html")
    return Entry(
        listing.name,
        listing.kind,
        result,
        address(figure),
        address(read_checked(folder, result, "opening.svg")),
        explorer.decode() if explorer else "",
    )


def address(svg: bytes | None) -> str:
    """Return a picture as an address that holds it; base64 would make it a third larger."""
    return f"data:image/svg+xml,{quote(svg, safe=_SAFE)}" if svg else ""


def framed(content: str) -> Any:
    """Return a part of a page as a page of its own, to stand between single quotes.

    It is shown in a frame whose scripts can reach nothing: the folder may be somebody else's.
    """
    from markupsafe import Markup

    style = (_HERE / "page.css").read_text(encoding="utf-8")
    whole = _FRAMED.format(style=style, content=content)
    return Markup(whole.replace("&", "&amp;").replace("'", "&#39;"))


def prose(text: str) -> Any:
    """Return text as HTML in which what stands between backticks is code."""
    from markupsafe import Markup

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False)))
