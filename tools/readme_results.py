"""Fill the numbers of the README from the accepted results, or check that they are right.

A number stands between two comments::

    <!-- result: synthetic_tasks: accuracy, circles, 4 experts | .2f -->0.99<!-- end -->

In a table the stroke needs a backslash, because GitHub divides cells at every other one.
`python tools/readme_results.py` writes them; with `--check` it changes nothing and fails if one is
not what the results say.
"""

import argparse
import re
import sys
from pathlib import Path

from pinfactory.experiments import read_accepted
from pinfactory.report import find_measure, format_measure

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"<!-- result: (?P<reference>[^>]*?) -->(?P<text>[^<]*)<!-- end -->")


def filled(page: str, folder: Path) -> str:
    """Return a page with its numbers as the results have them."""
    results = read_accepted(folder)

    def number(found: re.Match[str]) -> str:
        reference, _, style = found["reference"].replace("\\|", "|").partition(" | ")
        _, measure = find_measure(results, reference)
        text = format_measure(measure, style.strip())
        return f"<!-- result: {found['reference']} -->{text}<!-- end -->"

    return MARKED.sub(number, page)


def main() -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on differences")
    parser.add_argument("--page", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    asked = parser.parse_args()
    before = asked.page.read_text(encoding="utf-8")
    after = filled(before, asked.results)
    if asked.check and before != after:
        print(f"{asked.page} has numbers that are not those of {asked.results}", file=sys.stderr)
        return 1
    if not asked.check:
        asked.page.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
