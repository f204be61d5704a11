import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from pinfactory.cli import main
from pinfactory.experiments import rate_utility_exact as experiment


@pytest.fixture
def small(monkeypatch):
    def quick(**changes):
        return experiment.Settings(n_groups=2, group_size=2, n_beta=4, n_ratio=3, **changes)

    monkeypatch.setattr(experiment.Settings, "quick", quick)


def test_rate_utility_writes_figures_and_numbers(small, tmp_path, capsys):
    out = tmp_path / "new" / "folder"
    assert main(["rate-utility", "--out", str(out), "--experts", "1", "2", "--seed", "4"]) == 0
    assert (out / "rate_utility.svg").read_text().startswith("<?xml")
    assert (out / "rate_utility.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((out / "rate_utility.json").read_text())
    assert numbers["settings"]["seed"] == 4
    assert [curve["n_experts"] for curve in numbers["curves"]] == [1, 2]
    printed = capsys.readouterr().out
    assert str(out / "rate_utility.svg") in printed
    assert all(len(line) <= 80 for line in printed.splitlines() if "written" not in line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--experts", "0"], "n_experts must be at least 1, but got 0"),
        (["--experts"], "--experts must be one number or more, but got none"),
    ],
)
def test_a_wrong_value_is_one_line_on_stderr(small, tmp_path, capsys, arguments, message):
    assert main(["rate-utility", "--out", str(tmp_path), *arguments]) == 2
    assert capsys.readouterr().err.strip() == f"pinfactory: {message}"


def test_a_directory_that_cannot_be_made_is_one_line_on_stderr(tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    assert main(["rate-utility", "--out", str(file / "below")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("pinfactory: ")
    assert error.count("\n") == 1


def test_an_unknown_command_is_refused(capsys):
    assert main(["make-pins"]) == 2
    assert "make-pins" in capsys.readouterr().err


def test_version_and_help_are_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pinfactory {version('pinfactory')}\n"
    assert main([]) == 0
    assert "rate-utility" in capsys.readouterr().out


def test_help_imports_nothing_heavy():
    script = (
        "import sys; from pinfactory.cli import main; main(['--help']);"
        "sys.exit(bool({'jax', 'matplotlib', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0
