"""Print words, code blocks and executed blocks of every page; name what has no example.

Words are those of the text: code, printed output and generated tables do not count. Blocks are
those of Python. The tests execute all of them, and compare what they print where a page shows it.
A public class or function has an example if executed code uses it by name: on a page, or in a
docstring (`tests/test_examples.py`). What a page of the reference excludes is not public. The exit
code is 1 if `--most N` is given and a guide has more words.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from run_pages import BLOCK

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^(`{3,}|~{3,})(\S*)[^\n]*\n(.*?)^\1 *$", re.MULTILINE | re.DOTALL)
LISTED = re.compile(r"automodule:: (\S+)\n(?: +:exclude-members: (.*)\n)?")
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
# Pages that list or generate, and have nothing to show by code.
NO_EXAMPLE_NEEDED = (
    "equations.md",
    "results.md",
    "findings.md",
    "design.md",
    "comparison.md",
    "speed.md",
    "changelog.md",
    "index.md",
)


def pages() -> Iterator[Path]:
    """Return README and the pages of the documentation, without those of history."""
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if not {"_build", "notes", "results"} & set(path.parts):
            yield path


def count(text: str) -> tuple[int, int, int]:
    """Return the words of a page's text, its blocks of Python, and its blocks of any code."""
    kinds = [found[2] for found in FENCED.finditer(text)]
    prose = COMMENT.sub(" ", FENCED.sub(" ", text))
    code = sum(kind in ("python", "console", "bash", "sql") for kind in kinds)
    return len(re.findall(r"\w[\w'’.-]*", prose)), kinds.count("python"), code


def public_names() -> Iterator[tuple[str, str]]:
    """Return module and name of the classes and functions in the API reference."""
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name, without in LISTED.findall(page.read_text(encoding="utf-8")):
            module = import_module(name)
            listed = getattr(module, "__all__", None)
            for each in sorted({*(listed or vars(module))} - set(re.split(r"[+, ]+", without))):
                value = getattr(module, each)
                here = listed or getattr(value, "__module__", "") == name
                if here and callable(value) and value.__doc__ and not each.startswith("_"):
                    yield name, each


def executed_words() -> set[str]:
    """Return all words of the code that the tests execute."""
    blocks = [
        found["code"] for page in pages() for found in BLOCK.finditer(page.read_text("utf-8"))
    ]
    for path in sorted((ROOT / "src").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        blocks += [line for line in lines if line.lstrip().startswith((">>> ", "... "))]
    return set(re.findall(r"\w+", "\n".join(blocks)))


def unused_names() -> list[str]:
    """Return the public names that no executed code uses."""
    used = executed_words()
    return sorted({f"{module}.{name}" for module, name in public_names() if name not in used})


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
    unused = unused_names()
    print(f"public names without an example: {len(unused) or 'none'}", *unused, sep="\n  ")
    if long:
        print(f"more than {asked.most} words: {', '.join(long)}", file=sys.stderr)
    return 1 if long else 0


if __name__ == "__main__":
    sys.exit(main())
