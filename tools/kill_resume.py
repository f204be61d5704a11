"""Kill runs at random moments and go on with them: `python tools/kill_resume.py -n 50 [RUN …]`.

Every training, a sweep and a reproduction run once unbroken in a process of their own. Then, n
times, one is killed (SIGKILL) at a random moment, and the same command is run again in a new
process. The second must end with the same answers, bit for bit, and with the same rows in its log;
pieces of a sweep or a reproduction that were finished before must not be made again. What goes
wrong is printed with its seed, and the exit code is 1.

Most of the time goes into preparing a process to compute. So one process has several trainings, in
threads of their own, when it is killed; and the process that goes on with them begins the next.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from counts import Trial, record, recorded
from tqdm.auto import tqdm

TRIAL = Trial(
    "killed_runs",
    "Runs that are killed and go on",
    """
Each run is killed (SIGKILL) at a random moment: while it learns, writes its checkpoint or its log.
The same command goes on. A run that had ended before the moment came is not killed. Other answers
than those of an unbroken run (bit for bit), another log, a finished piece that is made again, or an
error are faults.
""",
    "python tools/kill_resume.py -n 50 --record results",
)


# Trainings that are under way in a process when it dies.
TOGETHER = 10


class Training(NamedTuple):
    """How a learner is trained for a second or two, with the arguments given, and asked."""

    train: Callable[..., Any]
    answer: Callable[[Any], np.ndarray]


def _table() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(400, 2))
    return x, np.abs(x[:, 0]) + 0.1 * random.normal(size=400)


def _classifier(**training: Any) -> Any:
    from pinfactory import SpecialistClassifier

    x, y = _table()
    return SpecialistClassifier(2, max_iter=3000, random_state=0).fit(x, y > 0.6, **training)


def _regressor(**training: Any) -> Any:
    from pinfactory import SpecialistRegressor

    return SpecialistRegressor(2, max_iter=3000, random_state=0).fit(*_table(), **training)


def _mixture(**training: Any) -> Any:
    from pinfactory import SpecialistMixture

    random = np.random.default_rng(0)
    x = random.normal(size=(10_000, 3)) + 3 * random.integers(0, 3, size=(10_000, 1))
    return SpecialistMixture(8, beta_selector=5.0, n_init=2, random_state=0).fit(x, **training)


def _gradient_mixture(**training: Any) -> Any:
    from pinfactory.paper import GradientMixture

    x = np.random.default_rng(0).normal(size=(400, 3))
    return GradientMixture(3, max_iter=3000, random_state=0).fit(x, **training)


def _chunked_regressor(**training: Any) -> Any:
    from pinfactory import SpecialistRegressor
    from pinfactory.estimators import drawn
    from pinfactory.estimators.chunked import LocalChunks

    drawn.MOST_ROWS = 2**12  # all further rows are learned from chunk by chunk
    x = np.random.default_rng(0).normal(size=(40, 1000, 2))
    chunks = LocalChunks(x[0, :5], lambda: ((part, np.abs(part[:, 0])) for part in x))
    model = SpecialistRegressor(2, start="tree", max_iter=500, batch_size=256, random_state=0)
    return model.fit(chunks, None, **training)


def _meta_regressor(**training: Any) -> Any:
    from pinfactory.meta import MetaSpecialistRegressor
    from pinfactory.meta.tasks import Sinusoids

    learner = MetaSpecialistRegressor(2, max_iter=2000, batch_size=4, random_state=0)
    return learner.fit(Sinusoids(shots=4), **training)


def _meta_classifier(**training: Any) -> Any:
    from pinfactory.meta import MetaSpecialistClassifier
    from pinfactory.meta.tasks import ArrayTasks

    x = np.random.default_rng(0).normal(size=(120, 3)).astype(np.float32)
    tasks = ArrayTasks(x, np.arange(120) // 20, ways=2, shots=3, queries=3)
    learner = MetaSpecialistClassifier(2, max_iter=2000, batch_size=4, random_state=0)
    return learner.fit(tasks, **training)


def _task_regressor(**training: Any) -> Any:
    from pinfactory.meta.tasks import Sinusoids
    from pinfactory.paper import TaskRegressor

    learner = TaskRegressor(2, max_iter=2000, batch_size=4, random_state=0)
    return learner.fit(Sinusoids(shots=4), **training)


def _agent(**training: Any) -> Any:
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.envs import Pendulum

    small = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 1}
    agent = SpecialistAgent(Pendulum(), 2, max_episode_steps=16, **small)
    return agent.learn(6400, report_every=640, **training)


def _meta_agent(**training: Any) -> Any:
    from pinfactory.rl.meta import MetaSpecialistAgent, pendulum_tasks

    small = {"n_tasks": 4, "n_steps": 16, "selector_units": 4, "expert_hidden": (4,)}
    return MetaSpecialistAgent(pendulum_tasks(), 2, **small).learn(20, report_every=2, **training)


def _probed(agent: Any) -> np.ndarray:
    return agent.adapt(agent.family.env).responsibilities_


_x = np.linspace(-2.0, 2.0, 10).reshape(5, 2)
_line = np.linspace(-2.0, 2.0, 6)[:, None]
_vectors = np.linspace(-2.0, 2.0, 18).reshape(6, 3)
TRAININGS: dict[str, Training] = {
    "SpecialistClassifier": Training(_classifier, lambda m: m.predict_proba(_x)),
    "SpecialistRegressor": Training(_regressor, lambda m: m.predict(_x)),
    "SpecialistMixture": Training(_mixture, lambda m: m.score_samples(_vectors)),
    "MetaSpecialistRegressor": Training(
        _meta_regressor, lambda m: m.adapt(_line, np.sin(_line[:, 0])).predict(_line)
    ),
    "SpecialistRegressor-chunks": Training(_chunked_regressor, lambda m: m.predict(_x)),
    "GradientMixture": Training(_gradient_mixture, lambda m: m.score_samples(_vectors)),
    "TaskRegressor": Training(
        _task_regressor, lambda m: m.adapt(_line, np.sin(_line[:, 0])).predict(_line)
    ),
    "MetaSpecialistClassifier": Training(
        _meta_classifier, lambda m: m.adapt(_vectors, np.arange(6) % 2).predict_proba(_vectors)
    ),
    "SpecialistAgent": Training(_agent, lambda m: m.predict(_vectors, deterministic=True)[0]),
    "MetaSpecialistAgent": Training(_meta_agent, _probed),
}


def _sweep(folder: Path) -> np.ndarray:
    from pinfactory import SpecialistMixture
    from pinfactory.sweep import sweep

    grid = {"n_experts": [1, 2, 3, 4, 5], "beta_selector": [1.0, 5.0]}
    x = np.random.default_rng(0).normal(size=(200, 2))
    result = sweep(SpecialistMixture(), grid, x, store=folder / "pieces", jobs=1, verbose=False)
    return np.array([row["score"] for row in result])


def _reproduction(folder: Path) -> np.ndarray:
    import small_experiment

    from pinfactory.experiments import Listing, read_result, run

    run([Listing("small", small_experiment)], folder, scale="quick", jobs=1, progress=False)
    result = read_result(folder / "small" / "result.json")
    return np.array([] if result is None else [m["ours"] for m in result["measures"]])


# Runs of pieces that are kept, each a function of the folder that returns its answers.
PIECEWISE: dict[str, Callable[[Path], np.ndarray]] = {
    "sweep": _sweep,
    "reproduction": _reproduction,
}


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Death(NamedTuple):
    """When a process dies: some seconds after each run came to a chunk or a number of pieces."""

    chunks: dict[Path, int]
    delay: float


def run_training(name: str, folder: Path, reached: Callable[[int], None]) -> None:
    """Train in this thread; `reached` is told the number of every chunk."""
    from pinfactory.callbacks import Callback, JsonLines

    seen: list[float] = []

    class Watch(Callback):
        def chunk(self, progress: Any, run: Any) -> None:
            seen.append(progress.seconds)
            reached(len(seen))

    callbacks = [Watch(), JsonLines(folder / "log.jsonl")]
    model = TRAININGS[name].train(callbacks=callbacks, checkpoint=folder / "run.pin")
    np.save(folder / "answer.npy", TRAININGS[name].answer(model))
    (folder / "seconds.json").write_text(json.dumps(seen))


def run_pieces(name: str, folder: Path, reached: Callable[[int], None]) -> None:
    """Make all pieces; `reached` is told their number whenever there are more."""
    begin, done = time.monotonic(), threading.Event()

    def watch() -> None:
        told = -1
        while not done.is_set():
            if (n := len(_pieces(folder))) > told:
                told = n
                reached(n)
            time.sleep(0.002)

    threading.Thread(target=watch, daemon=True).start()
    np.save(folder / "answer.npy", PIECEWISE[name](folder))
    done.set()
    seconds = (time.monotonic() - begin) / len(_pieces(folder))
    (folder / "seconds.json").write_text(json.dumps([seconds] * len(_pieces(folder))))


def _nothing(number: int) -> None:
    """Let a run go on."""


def _run(name: str, folders: Sequence[Path], death: Death | None) -> None:
    """Do or go on with the runs in `folders`, and then begin those that die."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    run = run_pieces if name in PIECEWISE else run_training
    for folder in folders:
        (folder / "answer.npy").unlink(missing_ok=True)  # of a run that had ended
        run(name, folder, _nothing)
    if death is not None:
        _die_in_all(partial(run, name), death)
    os._exit(0)  # a timer may be left


def _die_in_all(run: Callable[[Path, Callable[[int], None]], None], death: Death) -> None:
    """Begin all runs; each waits where it is to be, so that all are under way when it ends."""
    end = threading.Timer(death.delay, os.kill, (os.getpid(), signal.SIGKILL))
    everywhere = threading.Barrier(len(death.chunks), end.start)

    def begin(folder: Path, chunk: int) -> None:
        def reached(number: int) -> None:
            if number == chunk:
                everywhere.wait()

        try:
            run(folder, reached)
        except BaseException:  # the others would wait for ever
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=begin, args=place) for place in death.chunks.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# Children are copies of a process that has imported everything and computed nothing yet.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        f"pinfactory.{name}"
        for name in ("estimators", "meta", "paper", "rl.meta", "sweep", "experiments")
    ]
)


def _child(name: str, folders: Sequence[Path], death: Death | None = None) -> int:
    for place in (*folders, *(death.chunks if death else ())):
        place.mkdir(exist_ok=True)
    child = _processes.Process(target=_run, args=(name, folders, death))
    child.start()
    child.join()
    return int(child.exitcode or 0)


def _log(folder: Path) -> list[dict[str, Any]]:
    if not (folder / "log.jsonl").exists():
        return []
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def _pieces(folder: Path) -> dict[str, int]:
    """Return when each finished piece was written."""
    return {str(p): p.stat().st_mtime_ns for p in folder.rglob("pieces/**/*.json")}


def kill_and_resume(name: str, n: int, seed: int = 0) -> tuple[int, list[str]]:
    """Return how many runs were killed, and what was wrong with those that went on."""
    faults, killed = [], 0
    together = 1 if name in PIECEWISE else TOGETHER
    with tempfile.TemporaryDirectory() as place:
        # The second one takes the time of those that are killed.
        whole, second = Path(place, "whole"), Path(place, "second")
        if _child(name, [whole, second]) != 0:
            raise RuntimeError(f"{name}: the unbroken run fails")
        deaths = [
            _death(name, second, [Path(place, str(i)) for i in range(first, last)], first)
            for first in range(seed, seed + n, together)
            for last in [min(first + together, seed + n)]
        ]
        before: dict[Path, int] = {}
        finished: dict[str, int] = {}
        for death in tqdm([*deaths, None], desc=name, disable=n < 5):
            code = _child(name, list(before), death)
            faults += [
                f"{name} seed {folder.name}: {fault} (chunk {chunk})"
                for folder, chunk in before.items()
                if (fault := _fault(whole, folder, finished)) is not None
            ]
            before = death.chunks if death else {}
            if death and code not in (0, -signal.SIGKILL):
                faults.append(f"{name}: the process ends with {code} instead of being killed")
            killed += sum(not (folder / "answer.npy").exists() for folder in before)
            # Pieces are made by one run at a time.
            finished = {piece: t for folder in before for piece, t in _pieces(folder).items()}
    return killed, faults


def _death(name: str, unbroken: Path, folders: Sequence[Path], seed: int) -> Death:
    """Draw where runs die, given the times of an unbroken one."""
    draw, seconds = random.Random(seed), json.loads((unbroken / "seconds.json").read_text())
    # The time of a chunk and of writing a checkpoint, of all runs.
    delay = draw.uniform(0.0, len(folders) * (0.01 + sorted(seconds)[len(seconds) // 2]))
    # Pieces are counted when they are there, chunks when they begin to be reported.
    first = int(name not in PIECEWISE)
    return Death({folder: draw.randrange(len(seconds)) + first for folder in folders}, delay)


def _fault(whole: Path, folder: Path, finished: dict[str, int]) -> str | None:
    """Return what is wrong with a run that went on."""
    if not (folder / "answer.npy").exists():
        return "going on comes to no end"
    if not np.array_equal(*(np.load(f / "answer.npy") for f in (whole, folder))):
        return "other answers"
    if _log(folder) != _log(whole):
        return "other rows in the log"
    if not finished.items() <= _pieces(folder).items():
        return "a finished piece was made again"
    return None


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", default=[*TRAININGS, *PIECEWISE])
    parser.add_argument("-n", type=int, default=5, help="kills of each run")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first kill")
    parser.add_argument("--record", type=Path, help="folder for the counts as a result")
    parser.add_argument("--more", action="store_true", help="go on with the counts in --record")
    args = parser.parse_args()
    n_faults = 0
    for name in args.runs:
        counts: Counter[str] = Counter(tried=0, killed=0, faults=0)
        if args.more:
            counts.update(recorded(args.record, TRIAL, name))
        if (n := args.n - counts["tried"]) <= 0:
            continue
        killed, faults = kill_and_resume(name, n, args.seed + counts["tried"])
        counts.update(tried=n, killed=killed, faults=len(faults))
        print(*faults, sep="\n", end="\n" if faults else "")
        print(f"{name}: {dict(counts)}", flush=True)
        n_faults += len(faults)
        if args.record:
            record(args.record, TRIAL, name, args.seed, counts)
    return int(n_faults > 0)


if __name__ == "__main__":
    sys.exit(main())
