"""The examples in docstrings run and print what they show."""

import doctest
import warnings
from importlib import import_module
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import pinfactory

SOURCE = Path(__file__).parents[1] / "src"
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module_run_and_print_what_they_show(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # an example shows what a user sees
        result = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    plt.close("all")
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", [name for name in pinfactory.__all__ if "Specialist" in name])
def test_every_learner_has_an_example(name):
    assert ">>> " in getattr(pinfactory, name).__doc__
