"""Every point is computed once, kept whatever happens, and gives the same wherever it runs."""

import io
import multiprocessing
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.datasets import make_circles
from sklearn.linear_model import Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import train_test_split

from pinfactory import SpecialistClassifier
from pinfactory.sweep import SweepError, sweep
from pinfactory.sweep.store import compute
from toys.swept import root, traced, trained

TESTS = Path(__file__).parents[1]


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder in which functions are told to misbehave, and say what they compute."""
    folder = tmp_path / "notes"
    folder.mkdir()
    monkeypatch.setenv("TOY_FOLDER", str(folder))
    return folder


@pytest.fixture
def serial():
    """Points one after the other in this process."""
    with ThreadPoolExecutor(1) as executor:
        yield executor


def computed(notes):
    """Return which numbers were computed since the last call."""
    log = notes / "computed"
    if not log.exists():
        return []
    numbers = sorted(map(int, log.read_text().split()))
    log.unlink()
    return numbers


def test_records_have_the_order_of_the_grid_and_become_a_table(notes, serial):
    grid = {"power": np.asarray([0.5, 1.0]), "n": [4, 9]}
    result = sweep(root, grid, scheduler=serial)
    points = [(0.5, 4), (0.5, 9), (1.0, 4), (1.0, 9)]
    assert [(r["power"], r["n"]) for r in result] == points
    assert [r["root"] for r in result] == [2.0, 3.0, 4.0, 9.0]
    assert list(result.to_frame().columns) == ["power", "n", "seconds", "root"]
    # A point that is there twice is computed once; one value without a name is called "value".
    twice = sweep(abs_of, [{"x": -1}, {"x": 2}, {"x": -1}], scheduler=serial)
    assert [record["value"] for record in twice] == [1, 2]


def abs_of(x):
    return abs(x)


def test_a_bar_counts_points_and_tells_the_time_that_remains(notes, serial, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    sweep(root, {"n": [0, 1]}, scheduler=serial)
    assert re.search(r"2/2 \[\d\d:\d\d<00:00\]", terminal.getvalue())


def test_what_is_stored_is_never_computed_again(notes, tmp_path, serial):
    def run(function=root, **grid):
        return sweep(function, grid, store=tmp_path / "store", scheduler=serial)

    first = run(n=[1, 4])
    assert computed(notes) == [1, 4]
    assert run(n=[1, 4]).records == first.records
    assert run(n=[1, 4, 9])[0] == first[0]
    assert computed(notes) == [9]
    # … unless it was damaged, or something that it depends on is another.
    (piece,) = (tmp_path / "store").glob("*/n=4-*")
    piece.write_bytes(piece.read_bytes().replace(b'"root": 2.0', b'"root": 3.0'))
    assert run(n=[1, 4, 9])[1]["root"] == 2.0
    assert computed(notes) == [4]
    assert run(partial(root, power=1.0), n=[4])[0]["root"] == 4.0
    assert run(n=[4])[0]["root"] == 2.0
    assert computed(notes) == [4]


def test_a_point_that_fails_is_named_and_loses_no_other(notes, tmp_path, serial):
    (notes / "trouble 4").write_text("raise")
    with pytest.raises(SweepError, match=r"(?s)1 of 3 points failed: n=4\n.*no wire left") as told:
        sweep(root, {"n": [1, 4, 9]}, store=tmp_path, scheduler=serial)
    assert [record["n"] for record in told.value.result] == [1, 9]
    (notes / "trouble 4").unlink()
    computed(notes)
    result = sweep(root, {"n": [1, 4, 9]}, store=tmp_path, scheduler=serial, on_error="keep")
    assert (len(result), result.failures, computed(notes)) == (3, [], [4])


def test_a_killed_process_is_replaced_and_its_point_runs_again(notes):
    (notes / "trouble 4").write_text("die once")
    (notes / "trouble 9").write_text("die")
    result = sweep(root, {"n": [1, 4, 9, 16]}, jobs=2, on_error="keep")
    assert [record["root"] for record in result] == [1.0, 2.0, 4.0]
    assert computed(notes) == [1, 4, 16]
    (failure,) = result.failures
    assert str(failure) == "n=9: the process ended with SIGKILL, 3 times"


# A script without a guard, with a function of its own; a grid that grows is no change of code.
COORDINATOR = """
import sys
import toys.swept
from pinfactory.sweep import sweep

def root(n):
    return toys.swept.root(n)

sweep(root, {"n": range(N)}, store=sys.argv[1], jobs=2)
"""


def until(condition, process):
    deadline = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def began(notes, n):
    """Return the process that computes a number, "" before it has written that down."""
    note = notes / f"began {n}"
    return note.read_text() if note.exists() else ""


def lives(process):
    """Return whether a process is at work; the dead may stay listed until somebody asks."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def start(arguments, **settings):
    paths = [str(TESTS), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, start_new_session=True, **settings)


def test_a_killed_coordinator_goes_on_where_it_was(notes, tmp_path):
    script, store = tmp_path / "script.py", tmp_path / "store"
    script.write_text(COORDINATOR.replace("N", "6"))
    (notes / "trouble 3").write_text("wait")
    process = start([script, store])
    try:
        # All others are stored while one is at work.
        until(lambda: len(list(store.glob("*/*.json"))) == 5 and began(notes, 3), process)
        worker = int(began(notes, 3))
    finally:
        process.kill()
        process.wait()
    deadline = time.monotonic() + 600
    while lives(worker):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert computed(notes) == [0, 1, 2, 4, 5]
    (notes / "trouble 3").unlink()
    script.write_text(COORDINATOR.replace("N", "7"))
    assert start([script, store]).wait() == 0
    assert computed(notes) == [3, 6]


def test_points_that_differ_in_numbers_run_in_one_program(notes, serial):
    grid = {"kind": ["sine"], "x": np.linspace(0.0, 1.0, 8), "k": [1, 2]}
    result = sweep(traced, grid, replicas=5, scheduler=serial)
    assert len(result) == 16
    for record in result:
        assert record["y"] == pytest.approx(record["k"] ** 2 + np.sin(record["x"]), rel=1e-6)
    assert (notes / "traced").read_text().split() == ["once"]


def test_settings_of_an_estimator_that_differ_in_numbers_compile_once(serial, monkeypatch):
    # Other tests may have filled the caches, which would be emptied between the two fits.
    monkeypatch.setattr("pinfactory.core.training.forget_programs", lambda: None)
    X, y = make_circles(60, factor=0.4, noise=0.05, random_state=0)
    model = SpecialistClassifier(3, max_iter=20)
    n_programs = []

    def count(event, seconds, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            n_programs.append(event)

    def run(**grid):
        return sweep(model, grid, X, y, scheduler=serial)

    # A seed draws other rows to learn from, and rows decide how many candidates are trained.
    run(beta_selector=[3.0], random_state=range(2))
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        result = run(beta_selector=[1.0, 50.0], random_state=range(2))
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert n_programs == []
    assert len(result) == 4
    assert 0.0 <= result[0]["information_selector"] <= np.log2(3)
    assert {"score", "effective_experts"} <= result[0].keys()


def test_an_estimator_is_judged_on_rows_it_has_not_seen(serial):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    y = X @ [1.0, 2.0, 3.0] + rng.normal(size=50)
    (record,) = sweep(Ridge(), {"alpha": [0.7]}, X, y, random_state=3, scheduler=serial)
    fitted, held_out, y_fitted, y_held_out = train_test_split(X, y, test_size=0.2, random_state=3)
    centred = fitted - fitted.mean(0)
    weights = np.linalg.solve(
        centred.T @ centred + 0.7 * np.eye(3), centred.T @ (y_fitted - y_fitted.mean())
    )
    answer = y_fitted.mean() + (held_out - fitted.mean(0)) @ weights
    assert record["score"] == pytest.approx(r2_score(y_held_out, answer), rel=1e-9)


@pytest.mark.slow
def test_the_numbers_are_the_same_wherever_they_are_made():
    grid = {"beta": [2.0, 20.0], "seed": [0]}
    here = sweep(trained, grid, jobs=1)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as executor:
        there = sweep(trained, grid, scheduler=executor)
    assert [r["value"] for r in here] == [r["value"] for r in there]


@pytest.mark.parametrize(
    ("target", "grid", "more", "message"),
    [
        (root, {}, {}, "grid"),
        (root, [], {}, "at least one point"),
        (root, {"n": 3}, {}, r"write \[3\] for a single one"),
        (root, [3], {}, "a sequence of points"),
        (root, {"n": [object()]}, {}, "plain values"),
        (root, {"m": [1]}, {}, "does not fit the function.*m=1"),
        (root, {"n": [1]}, {"jobs": 0}, "jobs"),
        (root, {"n": [1]}, {"scheduler": 3}, "must be the address of a Dask scheduler"),
        (root, {"n": [1]}, {"scheduler": "tcp://x", "jobs": 2}, "counts local processes"),
        (root, {"n": [1]}, {"X": [[1]]}, "are for estimators"),
        (root, {"n": [1]}, {"on_error": "skip"}, "on_error"),
        (lambda n: n, {"n": [1]}, {"store": "nowhere"}, "move it to a module"),
        (Ridge(), {"alpha": [1.0]}, {}, "give `X`"),
        (Ridge(), {"beta": [1.0]}, {"X": [[1]]}, "parameters of Ridge, but got beta; it has alpha"),
        (Ridge(), {"alpha": [1.0]}, {"X": [[1]], "replicas": 2}, "rate_utility_curve"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(notes, target, grid, more, message):
    with pytest.raises(ValueError, match=message):
        sweep(target, grid, **more)
    assert computed(notes) == []


def test_keys_that_json_cannot_tell_apart_are_refused():
    with pytest.raises(ValueError, match="no two keys of one name"):
        compute(lambda: {1: "one", "1": "another"})


def test_a_function_may_not_return_the_name_of_a_parameter(serial):
    with pytest.raises(SweepError, match="'x', which is the name of a parameter"):
        sweep(lambda x: {"x": x}, {"x": [1]}, scheduler=serial)
