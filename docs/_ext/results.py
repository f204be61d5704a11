"""Numbers and tables of the pages, taken from the accepted results in `results/`.

One number, by experiment and measure, with a format after a stroke if it needs one::

    {result}`synthetic_tasks: accuracy, circles, 4 experts | .2f`

A table of an experiment, in which parts of the measures' names make rows and columns::

    ```{results} synthetic_tasks
    :quantities: accuracy
    :rows: 1
    :columns: 2
    :style: ±.3f
    ```

All numbers of an experiment::

    ```{all-measures} synthetic_tasks
    ```

Each experiment and each accepted result has a page of its own, `results/NAME.md`, which is written
before the pages are read and is not kept. Its title and text are those of the experiment as it is,
or those stored with the result if no experiment has its name. The page of an experiment without an
accepted result says so, and has the command.

Below a table, a result that another version has made is named with that version.
"""

from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from pinfactory.experiments import Experiment, command_of, discover, read_accepted
from pinfactory.report import Cells, find_measure, format_measure, number, table

_FOLDER = Path(__file__).parents[2] / "results"


def _made_by(result: dict[str, Any], release: str) -> str:
    """Return which version made a result, if it was not this one."""
    version = result["versions"].get("pinfactory", "an unknown version")
    return "" if version == release else f" (by {version})"


class ResultRole(SphinxRole):
    """One number."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return the number as text."""
        reference, _, style = self.text.partition(" | ")
        try:
            _, measure = find_measure(read_accepted(_FOLDER), reference)
        except ValueError as error:
            message = self.inliner.reporter.error(str(error), line=self.lineno)
            return [self.inliner.problematic(self.rawtext, self.rawtext, message)], [message]
        return [nodes.Text(format_measure(measure, style.strip()))], []


class ResultsTable(SphinxDirective):
    """The numbers of an experiment as a table, with what made them below."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "quantities": lambda text: [part.strip() for part in text.split(";")],
        "rows": directives.nonnegative_int,
        "columns": directives.nonnegative_int,
        "style": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Return the table and a line about the run."""
        name = self.arguments[0]
        results = read_accepted(_FOLDER)
        if name not in results:
            raise self.error(f"there is no accepted result of {name!r}")
        try:
            cells = table(results[name], **self.options)
            if cells[0] == ["", name]:
                cells[0] = ["", "measured"]
        except ValueError as error:
            raise self.error(str(error)) from error
        return [_table_node(cells), _origin(results[name], self.config.release)]


class AllMeasures(SphinxDirective):
    """All numbers of an experiment, with what it is about."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return text, table and a line about the run."""
        result = read_accepted(_FOLDER)[self.arguments[0]]
        _, text = _described(result)
        about = [_paragraph(part) for part in text.strip().split("\n\n")]
        tables = [_table_node(cells, title) for title, cells in _all_measures(result)]
        return [*about, *tables, _origin(result, self.config.release)]


def write_pages(app: Sphinx) -> None:
    """Write a page for each experiment and accepted result, and delete those that are gone."""
    folder = Path(app.srcdir) / "results"
    folder.mkdir(exist_ok=True)
    accepted = read_accepted(_FOLDER)
    experiments = {listing.name: listing.experiment for listing in discover()}
    pages = {
        folder / f"{name}.md": _without_result(name, experiments[name])
        for name in experiments.keys() - accepted.keys()
    }
    for name, result in accepted.items():
        title, _ = _described(result)
        text = f"# `{name}`: {title}\n\n```{{all-measures}} {name}\n```\n"
        pages[folder / f"{name}.md"] = text
    for path in set(folder.glob("*.md")) - set(pages):
        path.unlink()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


def _without_result(name: str, experiment: Experiment | None) -> str:
    """Return the page of an experiment that has no accepted result."""
    title, about = (f": {experiment.TITLE}", experiment.ABOUT) if experiment else ("", "")
    return (
        f"# `{name}`{title}\n\n{about}\n\nThere is no accepted result. This command makes one:\n\n"
        f"```console\n$ pinfactory reproduce {name} --scale paper\n```\n"
    )


def _described(result: dict[str, Any]) -> tuple[str, str]:
    """Return title and text of the experiment that a result is of."""
    for listing in discover():
        if listing.name == result["name"] and listing.experiment is not None:
            return listing.experiment.TITLE, listing.experiment.ABOUT
    return result["title"], result["about"]


def _paragraph(text: str) -> nodes.paragraph:
    """Return a paragraph in which what stands between backticks is code."""
    parts = text.split("`")
    kinds = (
        nodes.Text(part) if n % 2 == 0 else nodes.literal(part, part)
        for n, part in enumerate(parts)
    )
    return nodes.paragraph("", "", *kinds)


def _all_measures(result: dict[str, Any]) -> list[tuple[str, Cells]]:
    """Return all numbers as tables, with their titles.

    Numbers that the paper has, or that are promised, are listed one by one, with those of the
    paper's method beside ours. Of the others, those of one quantity with two further parts in their
    names are a table of both, and quantities with one further part share a table, if that saves
    lines.
    """
    measures, beside = _paired(result["measures"])
    result = result | {"measures": measures}
    grouped: dict[str, list[dict[str, Any]]] = {}
    for measure in measures:
        grouped.setdefault(measure["name"].split(", ")[0], []).append(measure)
    further: dict[int, list[str]] = {1: [], 2: []}
    for quantity, own in grouped.items():
        parts = {measure["name"].count(", ") for measure in own}
        if len(own) > 3 and len(parts) == 1 and not all(map(_has_more, own)):
            further.get(parts.pop(), []).append(quantity)
    tables = [
        (_with_unit(quantity, grouped), table(result, [quantity], *_sides(grouped[quantity]), "±"))
        for quantity in further[2]
    ]
    if len(further[1]) > 1:
        (_, *heads), *body = table(result, further[1], 1, 0, "±")
        tables.append(("", [["", *(_with_unit(head, grouped) for head in heads)], *body]))
    elif further[1]:
        further[1].pop()
    single = [
        measure
        for quantity, own in grouped.items()
        for measure in own
        if quantity not in further[1] + further[2] or _has_more(measure)
    ]
    lists = [[m for m in single if _has_more(m) == more] for more in (True, False)]
    return [*(("", _one_by_one(each, beside)) for each in lists if each), *tables]


def _paired(
    measures: list[dict[str, Any]],
) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the measures, and those of the paper's method by the name of ours beside them."""
    names = {measure["name"] for measure in measures}
    beside = {
        ours: measure
        for measure in measures
        if (ours := measure["name"].removesuffix(", the paper's method")) != measure["name"]
        and ours in names
    }
    taken = {measure["name"] for measure in beside.values()}
    return [measure for measure in measures if measure["name"] not in taken], beside


def _sides(measures: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the parts of the names that are rows and columns; there are few columns."""
    first, second = (
        len({measure["name"].split(", ")[part] for measure in measures}) for part in (1, 2)
    )
    return (1, 2) if second <= max(first, 6) else (2, 1)


# What a measure may have besides its own number.
_MORE = {"paper": "paper", "paper_method": "paper's method", "target": "promised"}


def _one_by_one(measures: list[dict[str, Any]], beside: dict[str, dict[str, Any]]) -> Cells:
    """Return the numbers with what the paper prints and what is promised, where there are any."""
    shown = [key for key in _MORE if any(m[key] is not None for m in measures)]
    head = ["", "measured", *(_MORE[key] for key in shown)]

    def more(measure: dict[str, Any], key: str) -> str:
        if key == "paper_method" and measure["name"] in beside:
            return format_measure(beside[measure["name"]], "±")
        return number(measure[key])

    rows = [
        [m["name"], f"{format_measure(m, '±')} {m['unit']}", *(more(m, key) for key in shown)]
        for m in measures
    ]
    return [head, *rows]


def _has_more(measure: dict[str, Any]) -> bool:
    return any(measure[key] is not None for key in _MORE)


def _with_unit(quantity: str, grouped: dict[str, list[dict[str, Any]]]) -> str:
    unit = grouped[quantity][0]["unit"]
    return f"{quantity} ({unit})" if unit and quantity != "seconds" else quantity


def _origin(result: dict[str, Any], release: str) -> nodes.paragraph:
    """Return a line about the run."""
    command = result.get("command") or command_of(result)
    seeds = "" if "command" in result else f", {result['seeds']} seed" + "s" * (result["seeds"] > 1)
    line = nodes.paragraph("", "", classes=["small"])
    line += nodes.literal(command, command)
    line += nodes.Text(
        f"{seeds}, {result['finished'][:10]}, {result['processor']}" + _made_by(result, release)
    )
    return line


def _table_node(cells: Cells, title: str = "") -> nodes.table:
    head, *body = cells
    group = nodes.tgroup("", cols=len(head))
    group += [nodes.colspec("", colwidth=1) for _ in head]
    group += nodes.thead("", _row(head))
    group += nodes.tbody("", *map(_row, body))
    classes = ["wide"] if len(head) > 7 else []
    return nodes.table("", *([nodes.title(title, title)] if title else []), group, classes=classes)


def _row(texts: list[str]) -> nodes.row:
    kept = (text.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") for text in texts)
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", text)) for text in kept))


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx of the role and the directive."""
    app.add_role("result", ResultRole())
    directives_: dict[str, type[Directive]] = {"results": ResultsTable, "all-measures": AllMeasures}
    for name, directive in directives_.items():
        app.add_directive(name, directive)
    app.connect("builder-inited", write_pages)
    # Results are no sources of Sphinx: read every page again.
    app.connect(
        "env-get-outdated", lambda app, env, added, changed, removed: sorted(env.found_docs)
    )
    return {"parallel_read_safe": True, "parallel_write_safe": True}
