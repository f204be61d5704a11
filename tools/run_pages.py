"""Run the code of pages and compare what it prints: `python tools/run_pages.py [--write] PAGE …`.

The Python blocks of a page run one after the other in one namespace. A block of kind `text` right
below one is what that block has to print; `--write` fills it in. A picture right below that is
what the block has drawn last, if its name begins with that of the page; `--write` makes it. A block
whose first line is `# file: name.py` is written to that file, from which later blocks import, and
is not run.
"""

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<gap>\n+```text\n(?P<printed>.*?)^```\n)?",
    re.DOTALL | re.MULTILINE,
)

PICTURE = re.compile(r"\n*!\[[^\]]*\]\((?P<path>[^)\s]+\.png)\)\n")
DECIMAL = re.compile(r"\d+\.\d+")
FILE = re.compile(r"# file: (\w+\.py)\n")


def run_page(text: str, page: Path | None = None) -> str:
    """Return the page with what its blocks really print, where it shows what they print.

    With the path of the page its pictures are drawn as well.
    """
    namespace: dict[str, object] = {}

    def run(found: re.Match[str]) -> str:
        printed = io.StringIO()
        if file := FILE.match(found["code"]):
            Path(file[1]).write_text(found["code"], encoding="utf-8")
            return found[0]
        with contextlib.redirect_stdout(printed):
            exec(compile(found["code"], "<block of a page>", "exec"), namespace)
        if page and (picture := PICTURE.match(text, found.end())):
            draw(page, page.parent / picture["path"])
        if found["gap"] is None:
            return found[0]
        output = with_known_digits(printed.getvalue(), found["printed"])
        return f"```python\n{found['code']}```\n\n```text\n{output}```\n"

    with imports_from_here():
        return BLOCK.sub(run, text)


def with_known_digits(printed: str, shown: str) -> str:
    """Return what was printed, with decimals as shown that differ by one in the last digit.

    Processors add in different orders, and round differently.
    """
    known = iter(DECIMAL.findall(shown))

    def choose(found: re.Match[str]) -> str:
        new, old = found[0], next(known, "")
        same_place = len(new) == len(old) and new.find(".") == old.find(".")
        if same_place and abs(int(new.replace(".", "")) - int(old.replace(".", ""))) == 1:
            return old
        return new

    return DECIMAL.sub(choose, printed)


def draw(page: Path, picture: Path) -> None:
    """Save the current figure as a picture of this page; leave the pictures of others alone."""
    from matplotlib import pyplot

    if picture.name.startswith(f"{page.stem}_"):
        pyplot.savefig(picture, dpi=100, bbox_inches="tight")
        pyplot.close("all")


@contextlib.contextmanager
def imports_from_here() -> Iterator[None]:
    """Let modules of the working directory be imported, and forget them afterwards."""
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        for name, module in list(sys.modules.items()):
            # Those below, such as of an environment in a folder of a checkout, are not the page's.
            if os.path.dirname(getattr(module, "__file__", None) or "") == here:
                del sys.modules[name]


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="fill in output and pictures")
    asked = parser.parse_args()
    os.environ.setdefault("MPLBACKEND", "agg")
    wrong = 0
    for page in (path.resolve() for path in asked.pages):
        before = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            after = run_page(before, page if asked.write else None)
        if asked.write:
            page.write_text(after, encoding="utf-8")
        elif before != after:
            print(f"{page} does not show what its code prints", file=sys.stderr)
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
