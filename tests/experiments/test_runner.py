"""Pieces are computed once, kept whatever happens, and turned into result and figure."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from pinfactory.experiments import Listing, read_checked, read_result, run

N = 4  # pieces of the quick preset


def toy(name="squares", kind="figure"):
    return Listing(name, import_module(f"toys.{name}"), kind=kind)


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder in which toys are told to misbehave, and say what they compute."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("TOY_FOLDER", str(folder))
    return folder


@pytest.fixture
def threads():
    """Where pieces run if no test of processes needs them elsewhere: those take a second each."""
    with ThreadPoolExecutor(2) as executor:
        yield executor


def go(out, *listings, **settings):
    return run(listings or [toy()], out, progress=False, **settings)


def computed(notes):
    """Return the numbers of the pieces computed since the last call."""
    log = notes / "computed"
    if not log.exists():
        return []
    numbers = sorted(map(int, log.read_text().split()))
    log.unlink()
    return numbers


def piece_file(out, i, name="squares"):
    (path,) = (out / name / "pieces").glob(f"piece-{i}-*")
    return path


def test_a_run_leaves_result_and_figure_and_says_where_it_was_made(notes, tmp_path):
    (outcome,) = go(tmp_path)
    assert outcome.error == ""
    text = (tmp_path / "squares" / "result.json").read_text()
    result = json.loads(text, parse_constant=pytest.fail)
    assert result == read_result(tmp_path / "squares" / "result.json")
    assert (result["kind"], result["scale"], result["seeds"]) == ("figure", "quick", 3)
    assert (result["title"], result["place"]) == ("Squares", "Section 1")
    assert (result["settings"], result["claim"]) == ({"seeds": 3, "n": 4}, "4 squares.")
    # The toy computes with NumPy alone.
    assert set(result["versions"]) == {"pinfactory", "numpy"}
    assert result["cores"] == len(os.sched_getaffinity(0))
    assert result["processor"]
    mean, nothing = result["measures"]
    assert (mean["ours"], mean["target"], mean["passed"]) == (3.5, 3.0, True)
    assert mean["spread"] == pytest.approx(np.std([0, 1, 4, 9]))
    assert (nothing["ours"], nothing["paper"], nothing["passed"]) == (None, 2.0, None)
    assert result["seconds"] == outcome.seconds > 0
    assert read_checked(tmp_path / "squares", result, "figure.png").startswith(b"\x89PNG")
    assert read_checked(tmp_path / "squares", result, "explore.html") == b"<p>four squares</p>"
    # 5,000 points of a scatter plot are pixels, not paths.
    svg = read_checked(tmp_path / "squares", result, "figure.svg")
    assert svg.startswith(b"<?xml")
    assert len(svg) < 200_000


def test_what_is_damaged_or_foreign_is_computed_again_and_nothing_else(notes, tmp_path, threads):
    go(tmp_path, scale="paper", scheduler=threads)
    assert computed(notes) == [0, 1, 2, 3, 4]
    first = piece_file(tmp_path, 0)
    for i, damage in {
        0: lambda content: content[:-5],
        1: lambda content: b"[]",
        2: lambda content: content.replace(b'"square": 4.0', b'"square": 5.0'),
        3: lambda content: first.read_bytes(),
        4: lambda content: content.replace(b'"square": 16.0', b'"square": "\\ud800"'),
    }.items():
        path = piece_file(tmp_path, i)
        path.write_bytes(damage(path.read_bytes()))
    (tmp_path / "squares" / "result.json").write_text("{}")
    (outcome,) = go(tmp_path, scale="paper", scheduler=threads)
    assert computed(notes) == [0, 1, 2, 3, 4]
    assert outcome.measures[0].ours == 6.0
    piece_file(tmp_path, 0).write_text("[" * 100_000)
    go(tmp_path, scale="paper", scheduler=threads)
    assert computed(notes) == [0]
    assert read_result(tmp_path / "squares" / "result.json")["scale"] == "paper"


def test_other_settings_never_find_the_pieces_of_these(notes, tmp_path, threads):
    go(tmp_path, scheduler=threads)
    assert computed(notes) == [0, 1, 2, 3]
    go(tmp_path, scheduler=threads)
    assert computed(notes) == []
    go(tmp_path, changes={"seeds": 9}, scheduler=threads)
    assert computed(notes) == [0, 1, 2, 3]


def test_a_piece_is_made_anew_only_where_a_setting_that_it_uses_has_changed(
    notes, tmp_path, threads, monkeypatch
):
    listing = toy("peers")

    def settings(**changes):
        monkeypatch.setattr(listing.experiment.Settings, "quick", lambda: preset(**changes))
        go(tmp_path, listing, scheduler=threads)
        return computed(notes)

    preset = listing.experiment.Settings
    assert settings() == [10, 11, 20, 21]
    assert settings(seeds=3) == [12, 22]
    assert settings(peers=(2,)) == []
    assert settings(peers=(1, 2, 3)) == [30, 31]
    assert settings(steps=11) == [10, 11, 20, 21]
    # What cannot be looked into might use anything.
    assert settings(steps=11, others=1) == [0]
    assert settings(steps=11, peers=(1,), others=1) == [0]


def test_pieces_run_side_by_side(notes, tmp_path):
    for i in range(2):
        (notes / f"trouble {i}").write_text("meet")
    (outcome,) = go(tmp_path, jobs=2)
    assert outcome.error == ""


def test_pieces_run_where_a_scheduler_says_and_are_judged_here(notes, tmp_path, threads):
    (outcome,) = go(tmp_path, scheduler=threads)
    assert computed(notes) == [0, 1, 2, 3]
    assert outcome.measures[0].ours == 3.5
    # What was made there is known here.
    go(tmp_path)
    assert computed(notes) == []


def test_what_measures_time_runs_after_the_others_on_one_core(notes, tmp_path):
    seen = []
    run([toy("timed"), toy()], tmp_path, progress=False, report=lambda o: seen.append(o.name))
    assert seen == ["squares", "timed"]
    for name, cores in (("squares", len(os.sched_getaffinity(0))), ("timed", 1)):
        data = json.loads(piece_file(tmp_path, 1, name).read_text())["data"]
        assert data["cores"] == cores
    assert read_result(tmp_path / "timed" / "result.json")["skipped"] == {"Tin": "pip install tin"}


def test_a_piece_that_fails_or_whose_process_dies_takes_nobody_along(notes, tmp_path, threads):
    (notes / "trouble 0").write_text("die")
    (notes / "trouble 1").write_text("raise")
    (notes / "trouble 2").write_text("odd")
    (outcome,) = go(tmp_path, jobs=1)
    assert computed(notes) == [3]
    assert outcome.error == "the process ended with SIGKILL, 3 times"
    stored = read_result(tmp_path / "squares" / "result.json")["error"]
    for text in ("piece 0/: the process ended", "RuntimeError: no wire left", "Traceback"):
        assert text in stored
    assert "must return plain data" in stored
    for i in range(3):
        (notes / f"trouble {i}").unlink()
    (outcome,) = go(tmp_path, scheduler=threads)
    assert outcome.error == ""
    assert computed(notes) == [0, 1, 2]


def test_an_error_of_what_judges_or_draws_is_in_the_result(notes, tmp_path, threads):
    failed, fine = go(tmp_path, toy("undrawn"), toy(), scheduler=threads)
    assert failed.error.startswith("ValueError: measures must have different names, but 'same'")
    assert "Traceback" in read_result(tmp_path / "undrawn" / "result.json")["error"]
    assert fine.error == ""


def test_the_bar_counts_all_pieces_and_fits_into_80_columns(
    notes, tmp_path, threads, monkeypatch, capsys
):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    run([Listing("a" * 40, toy().experiment), toy()], tmp_path, scheduler=threads)
    shown = capsys.readouterr().err.replace("\n", "\r").split("\r")
    assert f"{2 * N}/{2 * N}" in "".join(shown)
    assert max(map(len, shown)) <= 80


INTERRUPTED = """
import signal

# Who runs the tests in the background may have had the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
import sys
from pinfactory import experiments
from pinfactory.cli import main
from toys import squares
listings = [experiments.Listing("squares", squares)]
experiments.discover = lambda: listings
if __name__ == "__main__":
    sys.exit(main(["reproduce", "--out", sys.argv[1], "--jobs", "2"]))
"""


def computing(notes, *pieces):
    """Return whether all these have told who computes them."""
    began = [notes / f"began {i}" for i in pieces]
    return all(note.exists() and note.read_text() for note in began)


def test_ctrl_c_ends_all_processes_and_stores_nothing_half_done(notes, tmp_path, threads):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    out = tmp_path / "out"
    for i in (1, 2):
        (notes / f"trouble {i}").write_text("wait")
    paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(
        [sys.executable, str(script), str(out)],
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 600
        pieces = out / "squares" / "pieces"
        # Two are at work, and what was done before is stored: by the parent, which may be late.
        while not (computing(notes, 1, 2) and list(pieces.glob("piece-0*"))):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # As a terminal does: to all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 130
    assert "the same command goes on from here" in errors
    assert "Traceback" not in errors
    for i in (1, 2):  # who was at work has ended
        with pytest.raises(ProcessLookupError):
            os.kill(int((notes / f"began {i}").read_text()), 0)
    assert [path.name[:7] for path in pieces.iterdir()] == ["piece-0"]
    for i in (1, 2):
        (notes / f"trouble {i}").unlink()
    assert computed(notes) == [0]
    (outcome,) = go(out, scheduler=threads)
    assert outcome.error == ""
    assert computed(notes) == [1, 2, 3]
