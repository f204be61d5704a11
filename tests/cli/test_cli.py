import io
import json
import subprocess
import sys
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas
import pytest

from pinfactory import cli
from pinfactory.cli import COMMANDS, _short_warnings, main
from pinfactory.cli._arguments import values
from pinfactory.experiments import Listing, Outcome


@pytest.fixture
def toys(monkeypatch, tmp_path):
    """A figure that passes, one that fails and one that lacks a package, and a benchmark."""
    monkeypatch.setenv("TOY_FOLDER", str(tmp_path))
    listings = [
        Listing("squares", import_module("toys.squares")),
        Listing("undrawn", import_module("toys.undrawn")),
        Listing("whitening", None, "needs tin: pip install 'pinfactory[all]'"),
        Listing("timed", import_module("toys.timed"), kind="benchmark"),
    ]
    monkeypatch.setattr("pinfactory.experiments.discover", lambda: listings)


def test_reproduce_writes_results_and_the_page(toys, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    settings = ["--seeds", "5", "--jobs", "1", "--set", "n=5"]
    assert main(["reproduce", "squares", "--out", str(out), *settings]) == 0
    result = json.loads((out / "squares" / "result.json").read_text())
    assert (result["scale"], result["seeds"]) == ("quick", 5)
    assert result["changes"] == {"n": 5, "seeds": 5}
    assert result["settings"]["n"] == 5
    page = (out / "index.html").read_text()
    assert "Squares" in page
    assert "pinfactory reproduce squares --scale quick --seeds 5 --set n=5<" in page
    printed = capsys.readouterr().out
    assert str(out / "index.html") in printed
    assert "passed" in printed


def test_all_figures_are_made_by_default_and_a_failure_is_exit_code_1(toys, tmp_path, capsys):
    assert main(["reproduce", "--out", str(tmp_path), "--scale", "paper", "--jobs", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    printed = "\n".join(lines)
    assert "FAILED" in printed
    assert "ValueError: measures must have different names" in printed
    assert "whitening is left out: it needs tin" in printed
    assert "timed" not in printed
    page = (tmp_path / "index.html").read_text()
    assert "This experiment failed" in page
    assert "needs tin" in page
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 79


def test_benchmarks_are_run_on_demand_and_say_whom_they_go_without(toys, tmp_path, capsys):
    assert main(["reproduce", "--kind", "benchmark", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "timed goes without Tin: pip install tin" in printed
    assert (tmp_path / "timed" / "result.json").exists()
    assert not (tmp_path / "squares").exists()


def test_the_page_is_there_as_soon_as_one_figure_is(toys, tmp_path, monkeypatch):
    pages = []

    def run(listings, out, *, report, **settings):
        report(Outcome("squares", [], 1.0))
        pages.append((out / "index.html").exists())
        return []

    monkeypatch.setattr("pinfactory.experiments.run", run)
    main(["reproduce", "--out", str(tmp_path)])
    assert pages == [True]


def test_list_says_what_there_is_and_what_it_needs(toys, capsys):
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert "squares · Section 1\n    Squares\n" in printed
    assert "whitening\n    needs tin" in printed
    assert "timed" not in printed
    main(["reproduce", "--list", "--kind", "all"])
    printed = capsys.readouterr().out
    assert "timed\n    Timed\n" in printed
    assert max(map(len, printed.splitlines())) <= 79


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sqares"], "but got 'sqares': did you mean squares"),
        (["whitening"], "whitening cannot run here: it needs tin"),
        (["--seeds", "0"], "--seeds must be at least 1, but got 0"),
        (["--jobs", "0"], "--jobs must be at least 1, but got 0"),
        (["--set", "seeds=2"], "--set needs the names of the experiments"),
        (["squares", "--set", "sides=2"], "settings of squares (seeds, n), but got 'sides'"),
        (["squares", "--set", "n=1.5"], "--set must be like n=4, but got 1.5"),
        (["squares", "--set", "n=many"], "--set must be like n=4, but got 'many'"),
        (["squares", "--set", "seeds=[1,2]"], "--set must be like seeds=3, but got [1, 2]"),
        (["squares", "--method", "both"], "--method must be ours for squares, but got both"),
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
    # Of a table nothing is kept.
    monkeypatch.setattr(sys.modules["pinfactory.cli.fit"], "fit_and_judge", interrupt)
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2.5\n2,3.5\n3,1.5\n" * 9)
    assert main(["fit", str(tmp_path / "table.csv"), "--target", "y"]) == 130
    assert capsys.readouterr().err.endswith("pinfactory: interrupted\n")


def test_where_only_ascii_can_be_printed_signs_are_replaced(monkeypatch):
    def squares() -> int:
        """Print."""
        print("I(X;M) ≤ 2 at β₁")
        return 0

    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(cli, "COMMANDS", {"squares": squares, "other": squares})
    assert main(["squares"]) == 0
    output.flush()
    assert output.buffer.getvalue().decode() == "I(X;M) ? 2 at ??\n"


def test_without_the_report_packages_there_are_results_and_a_hint(
    toys, tmp_path, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["reproduce", "squares", "--out", str(tmp_path), "--jobs", "1"]) == 0
    assert "pinfactory[report]" in capsys.readouterr().out
    assert (tmp_path / "squares" / "figure.png").exists()


def test_an_unknown_command_is_refused(capsys):
    assert main(["make-pins"]) == 2
    assert "make-pins" in capsys.readouterr().err


def test_version_and_help_are_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pinfactory {version('pinfactory')}\n"
    assert main([]) == 0
    assert "reproduce" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_readable_at_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from pinfactory.cli import main; main(['--help']);"
        "sys.exit(bool({'jax', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


def test_sweep_writes_a_table_and_names_what_failed(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOY_FOLDER", str(tmp_path))
    (tmp_path / "trouble 1").write_text("raise")
    order = ["sweep", "toys.swept:root", "--grid", "n=0:3", "--set", "power=2", "--jobs", "1"]
    assert main([*order, "--out", str(tmp_path / "new")]) == 1
    printed = capsys.readouterr()
    assert "FAILED n=1: RuntimeError: no wire left" in printed.err
    (tmp_path / "trouble 1").unlink()
    assert main([*order, "--out", str(tmp_path / "new")]) == 0
    table = pandas.read_csv(tmp_path / "new" / "results.csv")
    assert list(table["root"]) == [0, 1, 4]
    assert (tmp_path / "computed").read_text().split() == ["0", "2", "1"]


def test_values_of_a_grid_may_be_numbers_words_and_lists():
    written = ["1,2.5", "0:3", "linear,mlp", "[8],[8,8]", "null,true", "a,1", "tcp://x"]
    meant = [[1, 2.5], [0, 1, 2], ["linear", "mlp"], [[8], [8, 8]], [None, True], ["a", 1]]
    assert list(map(values, written)) == [*meant, ["tcp://x"]]


def test_sweep_fits_an_estimator_to_a_table(tmp_path, capsys):
    x = np.arange(20.0)
    pandas.DataFrame({"x": x, "y": 2 * x, "z": x**2}).to_csv(tmp_path / "table.csv", index=False)
    order = ["sweep", "sklearn.linear_model:Ridge", "--grid", "alpha=0", "--jobs", "1"]
    order += ["--data", str(tmp_path / "table.csv"), "--out", str(tmp_path)]
    assert main([*order, "--column", "y"]) == 0
    assert pandas.read_csv(tmp_path / "results.csv")["score"][0] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toys.swept:none", "--grid", "n=1"], "no attribute 'none'"),
        (["toys.nowhere:root", "--grid", "n=1"], "No module named"),
        (["toys.swept:root", "--grid", "n"], "must be like beta_selector=1,5,25"),
        (["toys.swept:root", "--grid", "n=1", "--data", "x.csv"], "are for estimators"),
        (["SpecialistRegressor", "--grid", "beta_selector=1"], "give --data"),
    ],
)
def test_sweep_refuses_with_a_reason(arguments, message, tmp_path, capsys):
    assert main(["sweep", *arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_is_no_error():
    results = str(Path(__file__).parents[2] / "results")
    command = [sys.executable, "-m", "pinfactory", "results", "--accepted", results]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.wait(), process.stderr.read()) == (0, b"")


def test_a_warning_is_one_line_and_said_once():
    with _short_warnings():
        one = [warnings.formatwarning(UserWarning(text), UserWarning, "a.py", 1) for text in "aba"]
    assert one == ["pinfactory: a\n", "pinfactory: b\n", ""]
    assert "a.py" in warnings.formatwarning(UserWarning("a"), UserWarning, "a.py", 1, "")
