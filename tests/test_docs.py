"""What the pages say is true: names exist, code runs and prints what is shown."""

import base64
import functools
import json
import pkgutil
import re
import shlex
import warnings
from operator import attrgetter
from pathlib import Path

import matplotlib.pyplot as plt
import notebooks
import pytest
from docs_words import count, unused_names
from docs_words import pages as all_pages
from run_pages import BLOCK, run_page, with_known_digits

from pinfactory import cli
from pinfactory.experiments import discover, read_accepted
from pinfactory.report import format_measure

ROOT = Path(__file__).parents[1]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
PAGES = [
    str(page.relative_to(ROOT))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "```python" in page.read_text(encoding="utf-8") and "notes" not in page.parts
]
QUICK = ("README.md", "docs/idea.md", "docs/extending.md")
NAME = attrgetter("stem")
OPTIMISED = (pytest.mark.slow, pytest.mark.optimised)
# These compile longer than they compute, and show the same digits with the least effort, too.
COMPILED = ("docs/api/", "docs/howto/algorithms.md", "docs/howto/choosing.md")
SLOW = [
    pytest.param(page, marks=pytest.mark.slow if page.startswith(COMPILED) else OPTIMISED)
    for page in PAGES
    if page not in QUICK
]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(pinfactory\.[\w.]+)`", EQUATIONS))))
def test_every_name_in_the_table_of_equations_exists(name):
    assert pkgutil.resolve_name(name) is not None


def test_the_table_of_equations_has_all_thirty_in_order():
    numbers = [int(n) for n in re.findall(r"^\| \((\d+)\) \|", EQUATIONS, re.MULTILINE)]
    assert numbers == list(range(1, 31))


@pytest.mark.parametrize("page", [*QUICK, *SLOW])
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    text = (ROOT / page).read_text(encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a page shows what a user sees
        assert run_page(text) == text
    plt.close("all")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_worked_example_of_a_new_setting_is_short():
    (code,) = re.findall(
        r"```python\n(.*?)```",
        (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert len(code.splitlines()) <= 60


def test_a_block_that_is_a_file_is_written_and_can_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (
        "```python\n# file: part.py\nn = 3\n```\n\n```python\nimport part\n\nprint(part.n)\n```\n"
    )
    shown = page + "\n```text\n3\n```\n"
    assert run_page(page + "\n```text\n```\n") == shown
    assert run_page(shown.replace("n = 3", "n = 4")) == shown.replace("3", "4")


def test_decimals_may_differ_by_one_in_the_last_digit_alone():
    shown = "R² 0.990, 20.76 of 3, -0.04"
    assert with_known_digits("R² 0.991, 20.77 of 3, -0.04", shown) == shown
    for other in (
        "0.992, 20.76 of 3, -0.04",
        "0.99, 20.76 of 3, -0.04",
        "0.990, 20.76 of 4, -0.04",
    ):
        assert with_known_digits(f"R² {other}", shown) == f"R² {other}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=NAME)
def test_a_guide_has_no_more_than_1200_words(page):
    text = page.read_text(encoding="utf-8")
    assert count(text)[0] > 100
    assert len(text.split()) <= 1200


@pytest.mark.parametrize(
    "page",
    [p for p in (ROOT / "docs" / "notebooks").glob("*.md") if p.stem != "index"],
    ids=NAME,
)
def test_a_notebook_has_the_cells_of_its_page_and_is_up_to_date(page):
    made = notebooks.notebook(page.read_text(encoding="utf-8"))
    assert page.with_suffix(".ipynb").read_text(encoding="utf-8") == made
    cells = json.loads(made)["cells"]
    blocks = page.read_text(encoding="utf-8").count("```python")
    assert sum(cell["cell_type"] == "code" for cell in cells) == blocks > 2


def shown_commands():
    """Return the commands that README and docs show, without placeholders and comments."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in all_pages())
    text = text.replace("\\\n", " ").replace("\\|", "|")
    line, inline = r"^(?:\$ |    )pinfactory (.+)$", r"`pinfactory ([a-z]+ [^`\n]+)`"
    shown = re.findall(f"{line}|{inline}", text, re.MULTILINE)
    commands = {(whole or part).split(" #")[0] for whole, part in shown}
    return sorted(each for each in commands if not re.search(r"[\[…]", each))


def test_every_command_of_a_page_is_one_that_the_program_takes(monkeypatch):
    asked = []

    def stub(function):
        @functools.wraps(function)
        def parsed(*args, **settings):
            asked.append(settings.get("names", ()))
            return 0

        return parsed

    stubs = {name: stub(function) for name, function in cli.COMMANDS.items()}
    monkeypatch.setattr(cli, "COMMANDS", stubs)
    commands = shown_commands()
    wrong = [each for each in commands if cli.main(shlex.split(each)) != 0]
    assert not wrong
    assert len(commands) > 40
    known = {listing.name for listing in discover()} | {"NAME", "random_tables"}
    assert {name.replace("-", "_") for names in asked for name in names} <= known


def test_no_block_of_python_is_left_out():
    fence = re.compile(r"^ *[`~]{3,} *(?:\{code(?:-block)?\} *)?(?:i?py|python)", re.MULTILINE)
    for page in all_pages():
        text = page.read_text(encoding="utf-8")
        assert len(fence.findall(text)) == len(list(BLOCK.finditer(text))), page


def test_what_a_block_prints_is_shown_below_it():
    hidden = [
        str(page.relative_to(ROOT))
        for page in all_pages()
        for block in BLOCK.finditer(page.read_text(encoding="utf-8"))
        if block["gap"] is None and re.search(r"^ *print\(", block["code"], re.MULTILINE)
    ]
    assert not hidden


def test_no_line_of_code_or_output_is_wider_than_the_column_of_a_page():
    fenced = re.compile(r"^```(?:python|text|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
    wide = [
        (str(page.relative_to(ROOT)), line)
        for page in all_pages()
        for block in fenced.findall(page.read_text(encoding="utf-8"))
        for line in block.splitlines()
        if len(line) > 100
    ]
    assert not wide


def test_a_picture_below_a_block_is_drawn_by_it_and_is_part_of_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setattr(notebooks, "FOLDER", tmp_path)
    monkeypatch.chdir(tmp_path)
    page = (
        "```python\nfrom matplotlib import pyplot\n\npyplot.plot([1, 2])\n```\n\n"
        "![a line](page_line.png)\n"
    )
    run_page(page, tmp_path / "page.md")
    run_page(page, tmp_path / "other.md")  # the picture is not its own
    plt.close("all")
    drawn = (tmp_path / "page_line.png").read_bytes()
    (cell,) = json.loads(notebooks.notebook(page))["cells"]
    assert base64.b64decode(cell["outputs"][0]["data"]["image/png"]) == drawn


def test_the_page_of_a_result_has_all_its_numbers(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
    import results

    for result in read_accepted(ROOT / "results").values():
        tables = [cells for _, cells in results._all_measures(result)]
        shown = {cell for cells in tables for row in cells for cell in row}
        for measure in result["measures"]:
            text = format_measure(measure, "±")
            assert {text, f"{text} {measure['unit']}"} & shown, measure["name"]


def test_words_and_blocks_are_counted():
    page = "# Two words\n\n```python\na = 1\n```\n\n```text\n1\n```\n\n```console\n$ ls\n```\nthree"
    assert count(page) == (3, 1, 2)


def test_every_public_name_has_an_example_that_is_executed():
    assert not unused_names()


def test_no_line_of_text_is_lost_as_a_comment():
    fence = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
    lost = [
        (str(page.relative_to(ROOT)), line)
        for page in (ROOT / "docs").rglob("*.md")
        if "_build" not in page.parts
        for line in fence.sub("", page.read_text(encoding="utf-8")).splitlines()
        if line.lstrip().startswith("%")
    ]
    assert not lost
