"""List the measured numbers of README and docs: the result each comes from, and those left over.

A measured number is a decimal fraction, a percentage, or a number with a unit of time, memory,
information or gain. What defines something is not measured, and is written so that one can tell:
as code, as an indented formula, as a value of a symbol ("β₁ = 25", "a ∈ [0.1, 5]"), or in a column
of a table that is headed "default", "section" or "range". Nor are links and versions of Python.
Pages of history (`docs/notes`) may have numbers of their own; they say so in their first words.
The exit code is 1 if numbers are left over and `--strict` is given.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README_MARK = re.compile(r"<!-- result: ([^>]*?) -->[^<]*<!-- end -->")
ROLE = re.compile(r"\{result\}`([^`]*)`")
DIRECTIVE = re.compile(r"^```\{results\} (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_PROSE = re.compile(
    r"^(`{3,}|~{3,})[^\n]*\n.*?^\1 *$|<!--.*?-->|\]\([^)]*\)|https?://\S+|doi:\S+|(`+).+?\2(?!`)"
    r"|^ {4,}(?![-*\d])[^\n]*|Sections? [\d.]+(?: and [\d.]+)?|Python ≥? ?[\d.]+",
    re.MULTILINE | re.DOTALL,
)
# A symbol is one letter, with an index or a stroke, or a name of one: β₁, γ, K, T′.
SYMBOL = re.compile(r"(?<!\w)\w[₀-₉′]? ?[=∈≤≥<>] ?(?:[\[(][^\])]*[\])]|[−-]?[\d.,e−-]*\d)")
NUMBER = re.compile(
    r"(?<![\w.−-])[−-]?\d[\d,]*(?:\.\d+(?![\w.])|(?:\.\d+)?(?= ?%|"
    r" (?:s|ms|µs|seconds?|minutes?|hours?|k?B|MB|GB|bits?|nats?|points|times)\b))"
)
DEFINED = ("default", "section", "range")


def pages() -> Iterator[Path]:
    """Return the pages whose numbers need a result."""
    yield ROOT / "README.md"
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if not {"_build", "notes", "results"} & set(path.parts):
            yield path


def blanked(text: str, pattern: re.Pattern[str]) -> str:
    """Return a text with spaces in place of what a pattern finds, line breaks kept."""
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def without_definitions(text: str) -> str:
    """Return a text without the columns of tables that define something."""
    lines, defined = [], None
    for line in text.splitlines():
        cells = line.split("|")
        if not line.lstrip().startswith("|"):
            defined = None
        elif defined is None:
            heads = [cell.strip().lower() for cell in cells]
            defined = [i for i, head in enumerate(heads) if head.startswith(DEFINED)]
        else:
            cells = [" " * len(cell) if i in defined else cell for i, cell in enumerate(cells)]
        lines.append("|".join(cells))
    return "\n".join(lines)


def sources(text: str) -> list[tuple[int, str]]:
    """Return line and reference of every number or table that comes from a result."""
    found = [
        (text.count("\n", 0, match.start()) + 1, match[1])
        for pattern in (README_MARK, ROLE, DIRECTIVE)
        for match in pattern.finditer(text)
    ]
    return sorted(found)


def left_over(text: str) -> list[tuple[int, str]]:
    """Return line and text of every measured number that comes from no result."""
    for pattern in (README_MARK, ROLE, DIRECTIVE, NOT_PROSE, SYMBOL):
        text = blanked(text, pattern)
    text = without_definitions(text)
    return [
        (number, match[0])
        for number, line in enumerate(text.splitlines(), 1)
        for match in NUMBER.finditer(line)
    ]


def main() -> int:
    """Print both lists; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strict", action="store_true", help="fail if numbers are left over")
    parser.add_argument("--summary", action="store_true", help="count, do not list")
    asked = parser.parse_args()
    total = 0
    for path in pages():
        text = path.read_text(encoding="utf-8")
        known, unknown = sources(text), left_over(text)
        total += len(unknown)
        name = path.relative_to(ROOT)
        if known or unknown:
            print(f"{name}: {len(known)} from results, {len(unknown)} left over")
        if not asked.summary:
            for line, reference in known:
                print(f"  {line:5d}  {reference}")
            for line, number in unknown:
                print(f"  {line:5d}  {number:>12}  left over")
    print(f"left over: {total}")
    return 1 if asked.strict and total else 0


if __name__ == "__main__":
    sys.exit(main())
