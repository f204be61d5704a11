"""Numbers and tables of the documentation, taken from accepted results."""

from collections.abc import Mapping, Sequence
from typing import Any

from pinfactory.formats import number

# A table as rows of text; the first row is its head.
Cells = list[list[str]]


def find_measure(
    results: Mapping[str, Mapping[str, Any]], reference: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the result and the measure that "EXPERIMENT: MEASURE" names."""
    name, colon, wanted = (part.strip() for part in reference.partition(":"))
    if not colon:
        raise ValueError(f"a number is named by 'EXPERIMENT: MEASURE', but got {reference!r}")
    if name not in results:
        raise ValueError(f"there is no accepted result of {name!r}")
    for measure in results[name]["measures"]:
        if measure["name"] == wanted:
            return results[name], measure
    raise ValueError(f"the result of {name!r} has no measure {wanted!r}")


def format_measure(measure: Mapping[str, Any], style: str = "") -> str:
    """Return a measure as text: by a format such as ".2f", with its spread if that has "±" first.

    Without a format it has the digits that a reader needs, and no spread.
    """
    spread = style.startswith("±") and measure["spread"] is not None
    style = style.removeprefix("±")
    parts = [measure["ours"], *([measure["spread"]] if spread else [])]
    return " ± ".join(
        number(part) if not style or part is None else f"{part:{style}}".replace("-", "−")
        for part in parts
    )


def table(
    result: Mapping[str, Any],
    quantities: Sequence[str] = (),
    rows: int | None = None,
    columns: int | None = None,
    style: str = "",
) -> Cells:
    """Return the numbers of a result as a table.

    A measure's name has parts: the quantity (part 0) and what it is of. With `rows` and `columns`
    the table has a row for every text of one part and a column for every text of the other;
    several quantities share a cell, with a stroke between them. Without, it has one row for each
    measure.

    Parameters
    ----------
    result
        Content of a result.json.
    quantities
        Which quantities; all by default.
    rows, columns
        Numbers of the parts that rows and columns stand for.
    style
        As in `format_measure`.
    """
    parted = [(m["name"].split(", "), m) for m in result["measures"]]
    chosen = [(parts, m) for parts, m in parted if not quantities or parts[0] in quantities]
    if not chosen:
        raise ValueError(f"the result of {result['name']!r} has no {' or '.join(quantities)}")
    if rows is None or columns is None:
        lines = [[m["name"], format_measure(m, style)] for _, m in chosen]
        return [["", result["name"]], *lines]
    chosen = [(parts, m) for parts, m in chosen if len(parts) > max(rows, columns)]
    heads = list(dict.fromkeys(parts[columns] for parts, _ in chosen))
    cells = [["", *heads]]
    for label in dict.fromkeys(parts[rows] for parts, _ in chosen):
        line = [label]
        for head in heads:
            here = [
                format_measure(m, style)
                for parts, m in chosen
                if (parts[rows], parts[columns]) == (label, head)
            ]
            line.append(" / ".join(here) or "–")
        cells.append(line)
    return cells
