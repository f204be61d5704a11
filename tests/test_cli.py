import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType

import pytest
from matplotlib.figure import Figure

from pinfactory.cli import main
from pinfactory.experiments import Listing, Measure


@dataclass(frozen=True)
class Settings:
    seeds: int = 2

    @classmethod
    def quick(cls, **changes):
        return cls(**changes)

    paper = quick


@pytest.fixture
def toys(monkeypatch):
    """Three experiments: one that passes, one that fails, one that lacks a package."""

    def toy(title, compute):
        module = ModuleType("toy")
        module.TITLE, module.ABOUT, module.PLACE = title, "About.", "Section 1"
        module.Settings = Settings
        module.pieces = lambda settings: {"all": compute}
        module.draw = lambda results: Figure()
        module.measures = lambda results: [
            Measure(
                "pins made in a day by ten workers who each do one thing", 48_000.0, target=1.0
            ),
            Measure("wire left", 0.2, target=0.1, higher_is_better=False),
        ]
        return module

    listings = [
        Listing("drawing_the_wire", toy("Drawing", lambda: 1)),
        Listing("sharpening", toy("Sharpening", lambda: 1 / 0)),
        Listing("whitening", None, "needs tin: pip install 'pinfactory[all]'"),
    ]
    monkeypatch.setattr("pinfactory.experiments.discover", lambda: listings)


def test_reproduce_writes_results_and_the_page(toys, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["reproduce", "drawing-the-wire", "--out", str(out), "--seeds", "5"]) == 0
    result = json.loads((out / "drawing_the_wire" / "result.json").read_text())
    assert (result["scale"], result["seeds"]) == ("quick", 5)
    assert "Drawing" in (out / "index.html").read_text()
    printed = capsys.readouterr().out
    assert str(out / "index.html") in printed
    assert "falls short" in printed


def test_everything_is_reproduced_by_default_and_a_failure_is_exit_code_1(toys, tmp_path, capsys):
    assert main(["reproduce", "--out", str(tmp_path), "--scale", "paper"]) == 1
    printed = capsys.readouterr().out
    assert "FAILED" in printed
    assert "ZeroDivisionError: division by zero" in printed
    page = (tmp_path / "index.html").read_text()
    assert "This experiment failed" in page
    assert "needs tin" in page


def test_what_is_printed_fits_into_80_columns(toys, tmp_path, capsys):
    main(["reproduce", "--out", str(tmp_path)])
    main(["reproduce", "--list"])
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 79


def test_list_says_what_there_is_and_what_it_needs(toys, capsys):
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "drawing_the_wire · Section 1\n    Drawing\n" in printed
    assert "whitening\n    needs tin" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sharpning"], "but got 'sharpning': did you mean sharpening"),
        (["whitening"], "whitening cannot run here: it needs tin"),
        (["--seeds", "0"], "--seeds must be at least 1, but got 0"),
    ],
)
def test_a_wrong_value_is_one_line_on_stderr(toys, tmp_path, capsys, arguments, message):
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("pinfactory: ")
    assert error.count("\n") == 1


def test_a_directory_that_cannot_be_made_is_one_line_on_stderr(toys, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    assert main(["reproduce", "--out", str(file / "below")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_ctrl_c_says_how_to_go_on(toys, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("pinfactory.experiments.run", interrupt)
    assert main(["reproduce", "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_without_the_report_packages_there_are_results_and_a_hint(
    toys, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["reproduce", "drawing_the_wire", "--out", str(tmp_path)]) == 0
    assert "pinfactory[report]" in capsys.readouterr().out
    assert (tmp_path / "drawing_the_wire" / "figure.png").exists()


def test_an_unknown_command_is_refused(capsys):
    assert main(["make-pins"]) == 2
    assert "make-pins" in capsys.readouterr().err


def test_version_and_help_are_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pinfactory {version('pinfactory')}\n"
    assert main([]) == 0
    assert "reproduce" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from pinfactory.cli import main; main(['--help']);"
        "sys.exit(bool({'jax', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0
