"""Tests of other environments are counted by how they end."""

import subprocess
import sys
from pathlib import Path

from pinfactory.experiments import read_accepted

TESTS = """
import pytest

def test_that_passes(): pass
def test_that_fails(): assert False
def test_that_needs_what_is_missing(): pytest.importorskip("no_such_module")

@pytest.fixture
def broken(): raise OSError

def test_that_cannot_begin(broken): pass
"""


def test_every_test_is_counted_once(tmp_path):
    (tmp_path / "test_four.py").write_text(TESTS)
    tool = Path(__file__).parents[2] / "tools" / "tested_versions.py"
    command = [sys.executable, str(tool), "--record", str(tmp_path), "-p", "no:cacheprovider"]
    run = subprocess.run([*command, str(tmp_path)], capture_output=True, cwd=tmp_path, check=False)
    assert run.returncode == 1
    measures = read_accepted(tmp_path)["tested_versions"]["measures"]
    counts = {m["name"].partition(",")[0]: m["ours"] for m in measures}
    assert counts == {"tried": 4.0, "passed": 1.0, "skipped": 1.0, "faults": 2.0}
