"""Write the pages of docs/notebooks as notebooks: `python tools/notebooks.py [--check]`.

A page is Markdown with blocks of Python; a block of kind `text` below one is what it prints, which
the tests compare, and a picture below that is what it draws (`tools/run_pages.py --write`). So a
notebook is executed as its page is, and nothing is written by hand twice.
"""

import argparse
import base64
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

from run_pages import BLOCK, PICTURE

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
DOWNLOAD = re.compile(r"^\{download\}[^\n]*\n+", re.MULTILINE)


def notebook(page: str) -> str:
    """Return the notebook of a page, as JSON."""
    cells: list[dict[str, Any]] = []
    end = 0
    page = DOWNLOAD.sub("", page)
    for number, found in enumerate(BLOCK.finditer(page), start=1):
        cells += _text(page[end : found.start()])
        picture = PICTURE.match(page, found.end())
        cells.append(_code(number, found["code"], found["printed"], picture and picture["path"]))
        end = (picture or found).end()
    cells += _text(page[end:])
    for number, cell in enumerate(cells):
        content = f"{number}{cell['source']}".encode()
        cell["id"] = hashlib.sha256(content).hexdigest()[:8]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def _text(text: str) -> list[dict[str, Any]]:
    """Return a cell of Markdown, or none."""
    text = text.strip()
    return [{"cell_type": "markdown", "metadata": {}, "source": text}] if text else []


def _code(number: int, code: str, printed: str | None, picture: str | None) -> dict[str, Any]:
    """Return a cell of code with what it prints and draws."""
    outputs: list[dict[str, Any]] = []
    if printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed})
    if picture:
        data = {"image/png": base64.b64encode((FOLDER / picture).read_bytes()).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    return {
        "cell_type": "code",
        "execution_count": number,
        "metadata": {},
        "outputs": outputs,
        "source": code.strip(),
    }


def main() -> int:
    """Write or check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail on differences")
    asked = parser.parse_args()
    wrong = 0
    for page in sorted(FOLDER.glob("*.md")):
        if page.stem == "index":
            continue
        made, path = notebook(page.read_text(encoding="utf-8")), page.with_suffix(".ipynb")
        if not asked.check:
            path.write_text(made, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != made:
            print(f"{path.name} is not what its page says: run tools/notebooks.py", file=sys.stderr)
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
