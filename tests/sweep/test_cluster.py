"""Sweeps on a real Dask scheduler with two workers on this machine."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.datasets import make_circles
from sklearn.model_selection import GridSearchCV

from pinfactory import SpecialistClassifier
from pinfactory.cli import main
from pinfactory.sweep import sweep
from toys.swept import root, trained

distributed = pytest.importorskip(
    "distributed", reason="needs Dask: pip install 'pinfactory[cluster]'"
)
pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[1]


def environment():
    paths = [str(TESTS), *filter(None, sys.path)]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


class Cluster:
    """A scheduler and workers, each a process of its own."""

    def __init__(self, folder):
        self._folder, self._processes = folder, []
        self._start("scheduler", "--port", "0", "--scheduler-file", folder / "scheduler.json")
        self.workers = [self.add_worker() for _ in range(2)]
        with distributed.Client(scheduler_file=str(folder / "scheduler.json")) as client:
            client.wait_for_workers(2, timeout=600)
            self.address = client.scheduler.address

    def _start(self, what, *options):
        with (self._folder / f"{what} {len(self._processes)}.log").open("w") as log:
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "dask", what, "--host", "127.0.0.1", *map(str, options)],
                    env=environment(),
                    cwd=self._folder,
                    stdout=log,
                    stderr=log,
                )
            )
        return self._processes[-1]

    def add_worker(self):
        options = ("--nthreads", "1", "--no-nanny", "--death-timeout", "600")
        return self._start("worker", "--scheduler-file", self._folder / "scheduler.json", *options)

    def close(self):
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOY_FOLDER", str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(notes, tmp_path_factory):
    """One for all tests: whoever has killed a worker brings another."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.close()


def began(notes, n):
    """Return the process that computes a number, "" before it has written that down."""
    note = notes / f"began {n}"
    return note.read_text() if note.exists() else ""


COORDINATOR = """
import sys
from toys.swept import root
from pinfactory.sweep import sweep
sweep(root, {"n": range(12)}, store=sys.argv[1], scheduler=sys.argv[2])
"""


def test_lost_workers_and_coordinators_cost_no_finished_work(cluster, notes, tmp_path):
    store = tmp_path / "store"
    for n in (2, 5):
        (notes / f"trouble {n}").write_text("wait")
    coordinator = subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(store), cluster.address], env=environment()
    )
    # Both workers are at work: one is killed and a new one comes; what the dead one did goes on
    # there.
    deadline = time.monotonic() + 600
    while not all(began(notes, n) for n in (2, 5)):
        assert time.monotonic() < deadline
        assert coordinator.poll() is None
        time.sleep(0.05)
    done = len(list(store.glob("*/*.json")))
    victim = int(began(notes, 2))
    (notes / "began 2").unlink()
    os.kill(victim, signal.SIGKILL)
    cluster.add_worker()
    while not began(notes, 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # Then the coordinator is killed, and started again.
    coordinator.kill()
    coordinator.wait()
    for n in (2, 5):
        (notes / f"trouble {n}").unlink()
    finished = {path.name.split("-")[0] for path in store.glob("*/*.json")}
    assert len(finished) >= done
    before = (notes / "computed").read_text().split()
    result = sweep(root, {"n": range(12)}, store=store, scheduler=cluster.address)
    assert [record["root"] for record in result] == [n**0.5 for n in range(12)]
    again = (notes / "computed").read_text().split()[len(before) :]
    assert not finished & {f"n={n}" for n in again}
    assert set(map(int, before + again)) == set(range(12))


def test_a_cluster_gives_the_same_numbers_as_this_machine(cluster):
    grid = {"beta": [2.0, 20.0], "seed": [0]}
    with distributed.Client(cluster.address, set_as_default=False) as client:
        there = sweep(trained, grid, scheduler=client)
        assert client.status == "running"  # who opens a client closes it
    here = sweep(trained, grid, jobs=1)
    assert [r["value"] for r in here] == [r["value"] for r in there]


def test_a_grid_search_of_scikit_learn_runs_on_the_cluster(cluster):
    X, y = make_circles(60, factor=0.4, noise=0.05, random_state=0)
    simple = {"start": "random", "n_init": 1, "early_stopping": False, "max_iter": 20}
    committee = SpecialistClassifier(2, objective="free_energy", random_state=0, **simple)
    search = GridSearchCV(committee, {"beta_selector": [3.0, 9.0]}, cv=2, refit=False)
    with distributed.Client(cluster.address), joblib.parallel_config("dask"):
        search.fit(X, y)
    there = search.cv_results_["mean_test_score"]
    np.testing.assert_array_equal(there, search.fit(X, y).cv_results_["mean_test_score"])


def test_compare_sends_its_folds_to_the_cluster(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    X, y = make_circles(80, factor=0.4, noise=0.05, random_state=0)
    table = np.column_stack([X, y])
    np.savetxt("circles.csv", table, delimiter=",", header="a,b,ring", comments="")
    command = ["compare", "circles.csv", "--target", "ring", "--folds", "2", "--json"]
    command += ["--skip", "EBM"] if find_spec("interpret") else []  # which takes long
    told = []
    for more in ([], ["--scheduler", cluster.address]):
        assert main([*command, *more]) == 0
        told.append(json.loads(capsys.readouterr().out))
    here, there = ({name: model["score"] for name, model in one.items()} for one in told)
    assert there == here
