"""Print words, code blocks and executed blocks of every page; name pages without an example.

Words are those of the text: code, printed output and generated tables do not count. Blocks are
those of Python. The tests execute all of them, and compare what they print where a page shows it.
The exit code is 1 if `--most N` is given and a guide has more words.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from run_pages import BLOCK

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^(`{3,}|~{3,})(\S*)[^\n]*\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# Pages that list or generate, and have nothing to show by code.
NO_EXAMPLE_NEEDED = (
    "equations.md",
    "results.md",
    "findings.md",
    "design.md",
    "comparison.md",
    "index.md",
)


def pages() -> Iterator[Path]:
    """Return README and the pages of the documentation, without those of history."""
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if not {"_build", "notes"} & set(path.parts):
            yield path


def count(text: str) -> tuple[int, int, int]:
    """Return the words of a page's text, its blocks of Python, and its blocks of any code."""
    kinds = [found[2] for found in FENCED.finditer(text)]
    prose = COMMENT.sub(" ", FENCED.sub(" ", text))
    code = sum(kind in ("python", "console", "bash", "sql") for kind in kinds)
    return len(re.findall(r"\w[\w'’.-]*", prose)), kinds.count("python"), code


def main() -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, help="most words that a guide may have")
    asked = parser.parse_args()
    bare, long = [], []
    print(f"{'page':<36} {'words':>6} {'executed':>8} {'compared':>8}")
    for path in pages():
        name = str(path.relative_to(ROOT))
        text = path.read_text(encoding="utf-8")
        words, blocks, code = count(text)
        compared = sum(found["gap"] is not None for found in BLOCK.finditer(text))
        print(f"{name:<36} {words:>6} {blocks:>8} {compared:>8}")
        if not code and path.name not in NO_EXAMPLE_NEEDED:
            bare.append(name)
        if asked.most is not None and path.parent.name == "guide" and words > asked.most:
            long.append(name)
    print(f"without an example: {', '.join(bare) or 'none'}")
    if long:
        print(f"more than {asked.most} words: {', '.join(long)}", file=sys.stderr)
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
