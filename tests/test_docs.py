"""What the pages say is true: names exist and examples run."""

import pkgutil
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parents[1]
EQUATIONS = (ROOT / "docs" / "equations.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(pinfactory\.[\w.]+)`", EQUATIONS))))
def test_every_name_in_the_table_of_equations_exists(name):
    assert pkgutil.resolve_name(name) is not None


def test_the_table_of_equations_has_all_thirty_in_order():
    numbers = [int(n) for n in re.findall(r"^\| \((\d+)\) \|", EQUATIONS, re.MULTILINE)]
    assert numbers == list(range(1, 31))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_readme_shows_the_examples_as_they_are(example):
    _docstring, code = example.read_text(encoding="utf-8").split('"""\n\n', 1)
    assert code in snippets(README)


@pytest.mark.parametrize("code", snippets(README))
def test_the_examples_of_the_readme_run(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(code, {})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["core", "tables"])
def test_a_guide_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "guide" / f"{name}.md").read_text(encoding="utf-8")
    exec("\n".join(snippets(page)), {})
    plt.close("all")


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / page).parent / target).exists(), target


def test_the_worked_example_of_a_new_setting_runs(capsys):
    (code,) = snippets((ROOT / "docs" / "extending.md").read_text(encoding="utf-8"))
    assert len(code.splitlines()) <= 60
    exec(code, {})
    assert capsys.readouterr().out == "True True\n"
