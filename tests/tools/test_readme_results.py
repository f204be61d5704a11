"""Numbers of the README come from results, and others are found."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERS = runpy.run_path(str(ROOT / "tools" / "docs_numbers.py"))
README = runpy.run_path(str(ROOT / "tools" / "readme_results.py"))


def test_the_numbers_of_the_readme_are_those_of_the_results(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["readme_results.py", "--check"])
    assert README["main"]() == 0
    wrong = tmp_path / "README.md"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wrong.write_text(text.replace("<!-- end -->", "1<!-- end -->", 1), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["readme_results.py", "--check", "--page", str(wrong)])
    assert README["main"]() == 1
    assert "numbers that are not those of" in capsys.readouterr().err


def test_numbers_are_filled_in_and_a_wrong_one_is_noticed():
    filled = README["filled"]
    source = next((ROOT / "results").glob("*.json"))
    result = json.loads(source.read_text())
    name, first = source.stem, result["measures"][0]
    before = f"It is <!-- result: {name}: {first['name']} | .2f -->?<!-- end --> now."
    after = filled(before, ROOT / "results")
    number = f"{first['ours']:.2f}".replace("-", "−")
    assert after == before.replace("?", number)
    in_table = before.replace(" | ", r" \| ")
    assert filled(in_table, ROOT / "results") == in_table.replace("?", number)
    with pytest.raises(ValueError, match="no accepted result of 'tin'"):
        filled("<!-- result: tin: x -->1<!-- end -->", ROOT / "results")


def test_rows_of_the_tables_of_the_readme_have_as_many_cells_as_their_heads():
    tables = re.findall(r"(?:^\|.*\n)+", (ROOT / "README.md").read_text(), re.MULTILINE)
    for table in tables:
        strokes = [len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()]
        assert len(set(strokes)) == 1, table
    assert len(tables) > 2


def test_no_number_of_readme_and_docs_is_left_over():
    lost = [
        f"{path.relative_to(ROOT)}:{line}: {number}"
        for path in NUMBERS["pages"]()
        for line, number in NUMBERS["left_over"](path.read_text(encoding="utf-8"))
    ]
    assert lost == []


def test_pages_of_history_say_that_they_are():
    for path in (ROOT / "docs" / "notes").glob("*.md"):
        if path.stem != "index":
            text = path.read_text(encoding="utf-8")
            assert "These numbers are history." in text
            assert "version 0.1.0" in text


PAGE = """
Four experts get {result}`toy: accuracy` right, one 0.43; a step takes 12 % less (Section 4.1).

| 0.991 ± 0.006 | `x = 0.5` | [0.3](a0.2.md) |

```python
y = 0.25
```

```{results} toy
:rows: 1
```

<!-- result: toy: bits -->1.08<!-- end -->
It takes 94,000 steps in 17 s and 3 MB, with −0.5 nats.
"""


def test_measured_numbers_are_listed_with_the_result_they_come_from():
    assert NUMBERS["sources"](PAGE) == [(2, "toy: accuracy"), (10, "toy"), (14, "toy: bits")]


def test_numbers_without_a_result_are_left_over():
    measured = [(2, "0.43"), (2, "12"), (4, "0.991"), (4, "0.006"), (4, "0.3")]
    assert NUMBERS["left_over"](PAGE) == [*measured, (15, "17"), (15, "3"), (15, "−0.5")]


DEFINITIONS = """
With β₁ = 2.5, a ∈ [0.1, 5] and γ = 0.99 on Python 3.11, `0.01 s` a step:

    ½ exp(−0.05 ω²)

| name | default | section |
|---|---|---|
| `mass` | 10.47 | 2.1 |

````md
```
0.25
```
0.5
````
"""


def test_definitions_are_not_measurements():
    assert NUMBERS["left_over"](DEFINITIONS) == []
    assert NUMBERS["left_over"]("| name | value |\n|---|---|\n| mass | 10.47 |") == [(3, "10.47")]
    assert NUMBERS["left_over"]("The accuracy = 0.98") == [(1, "0.98")]
