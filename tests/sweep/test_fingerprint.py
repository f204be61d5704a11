"""A piece is computed again when code it uses has changed, and only then."""

import os
import sys

import pytest

from pinfactory.sweep.fingerprint import dependencies

COMPUTES = ("Settings", "pieces")
FILES = {
    "__init__.py": "from .used import Used\nfrom .unused import Unused\nOWN = 1\n",
    "figure.py": '''
"""About the figure."""
from . import Used
from .drawing import line
import numpy as np
import toy_beside

TITLE = "a"

class Settings:
    """What can be chosen."""
    n = 3

def pieces(settings):
    return {"a": _compute}

def _compute():
    """Compute it."""
    from .lazy import late
    return late(np.zeros(3)), Used, toy_beside.HERE

def draw(results):
    return line()

if __name__ == "__main__":
    print("run")
''',
    "used.py": '''
"""What is used."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from .typed import Typed

class Used:
    """A class."""
    x: int = 1
    "What x is."
''',
    "typed.py": "class Typed: ...\n",
    "unused.py": "class Unused: ...\n",
    "drawing.py": "def line(): ...\n",
    "lazy.py": "from scipy import special\ndef late(x): return x  # as it is\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "toy_code"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (tmp_path / "toy_beside.py").write_text("HERE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.startswith("toy_code")]:
        del sys.modules[name]


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))


def test_imports_are_followed_through_packages_functions_and_types(package):
    found = dependencies("toy_code.figure", COMPUTES)
    assert found.modules == ["toy_beside", "toy_code.lazy", "toy_code.typed", "toy_code.used"]
    assert set(found.libraries) == {"numpy", "scipy"}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("used.py", "x: int = 1", "x: int = 2"),
        ("typed.py", "...", "y = 1"),
        ("lazy.py", "return x", "return -x"),
        ("../toy_beside.py", "HERE = 1", "HERE = 2"),
        ("figure.py", "n = 3", "n = 4"),
        ("figure.py", "np.zeros", "np.ones"),
    ],
)
def test_code_that_is_used_counts(package, file, old, new):
    before = dependencies("toy_code.figure", COMPUTES).digest
    edit(package / file, old, new)
    assert dependencies("toy_code.figure", COMPUTES).digest != before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("used.py", "A class.", "A better class."),
        ("used.py", "What x is.", "What x was."),
        ("used.py", "What is used.", "Something."),
        ("lazy.py", "as it is", "unchanged"),
        ("unused.py", "...", "z = 1"),
        ("__init__.py", "OWN = 1", "OWN = 2"),
        ("drawing.py", "...", "return 1"),
        ("figure.py", 'TITLE = "a"', 'TITLE = "b"'),
        ("figure.py", "return line()", "return line() or 1"),
        ("figure.py", "Compute it.", "Do it."),
        ("figure.py", 'print("run")', 'print("walk")'),
    ],
)
def test_words_and_code_of_others_do_not_count(package, file, old, new):
    before = dependencies("toy_code.figure", COMPUTES).digest
    edit(package / file, old, new)
    assert dependencies("toy_code.figure", COMPUTES).digest == before


def test_figures_depend_on_what_they_use_alone():
    tables = dependencies("pinfactory.experiments.figures.classification", COMPUTES).modules
    assert "pinfactory.core.learning" in tables
    assert not [name for name in tables if name.startswith(("pinfactory.rl", "pinfactory.vision"))]
    agents = dependencies("pinfactory.experiments.figures.rl_balance", COMPUTES).modules
    assert any(name.startswith("pinfactory.rl") for name in agents)
