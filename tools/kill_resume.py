"""Kill runs at random moments and go on with them: `python tools/kill_resume.py -n 50 [RUN …]`.

Every training, a sweep and a reproduction run once unbroken in a process of their own. Then, n
times, one is killed (SIGKILL) at a random moment, and the same command is run again in a new
process. The second must end with the same answers, bit for bit, and with the same rows in its log;
pieces of a sweep or a reproduction that were finished before must not be made again. What goes
wrong is printed with its seed, and the exit code is 1.

Most of the time goes into preparing a process to compute. So the process that goes on with one run
then begins the next, and is killed in it.
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
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from counts import Trial, record
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
    x = random.normal(size=(40_000, 3)) + 3 * random.integers(0, 3, size=(40_000, 1))
    return SpecialistMixture(8, beta_selector=5.0, n_init=2, random_state=0).fit(x, **training)


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


def run_training(name: str, folder: Path, chunk: int, delay: float) -> None:
    """Train in this process, which dies `delay` seconds after a chunk if that is not 0."""
    from pinfactory.callbacks import Callback, JsonLines

    seen: list[float] = []

    class Watch(Callback):
        def chunk(self, progress: Any, run: Any) -> None:
            seen.append(progress.seconds)
            if len(seen) == chunk:
                threading.Timer(delay, _die).start()

    callbacks = [Watch(), JsonLines(folder / "log.jsonl")]
    model = TRAININGS[name].train(callbacks=callbacks, checkpoint=folder / "run.pin")
    np.save(folder / "answer.npy", TRAININGS[name].answer(model))
    (folder / "seconds.json").write_text(json.dumps(seen))


def run_pieces(name: str, folder: Path, n_pieces: int, delay: float) -> None:
    """Make all pieces; the process dies `delay` seconds after so many, if that is not 0."""
    begin = time.monotonic()

    def watch() -> None:
        while len(_pieces(folder)) < n_pieces:
            time.sleep(0.002)
        time.sleep(delay)
        _die()

    if delay:
        threading.Thread(target=watch, daemon=True).start()
    np.save(folder / "answer.npy", PIECEWISE[name](folder))
    seconds = (time.monotonic() - begin) / len(_pieces(folder))
    (folder / "seconds.json").write_text(json.dumps([seconds] * len(_pieces(folder))))


class Death(NamedTuple):
    """Where a run dies: in a folder, so many seconds after a chunk or a number of pieces."""

    folder: Path
    chunk: int
    delay: float


def _run(name: str, folders: Sequence[Path], death: Death | None) -> None:
    """Do or go on with the runs in `folders` and then begin the one that dies."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    run = run_pieces if name in PIECEWISE else run_training
    for folder in folders:
        (folder / "answer.npy").unlink(missing_ok=True)  # of a run that had ended
        run(name, folder, 0, 0.0)
    if death is not None:
        run(name, *death)
    os._exit(0)  # a timer may be left


# Children are copies of a process that has imported everything and computed nothing yet.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [f"pinfactory.{name}" for name in ("estimators", "meta", "rl.meta", "sweep", "experiments")]
)


def _child(name: str, folders: Sequence[Path], death: Death | None = None) -> int:
    for place in (*folders, *([death.folder] if death else ())):
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
    with tempfile.TemporaryDirectory() as place:
        # The second one takes the time of those that are killed.
        whole, second = Path(place, "whole"), Path(place, "second")
        if _child(name, [whole, second]) != 0:
            raise RuntimeError(f"{name}: the unbroken run fails")
        deaths = [_death(name, second, Path(place, str(i)), i) for i in range(seed, seed + n)]
        before: Death | None = None
        finished: dict[str, int] = {}
        for death in tqdm([*deaths, None], desc=name, disable=n < 5):
            code = _child(name, [before.folder] if before else [], death)
            killed += code == -signal.SIGKILL
            if before and (fault := _fault(whole, before.folder, finished)) is not None:
                faults.append(
                    f"{name} seed {before.folder.name}: {fault} "
                    f"(chunk {before.chunk}, {before.delay:.3f} s)"
                )
            finished, before = _pieces(death.folder) if death else {}, death
    return killed, faults


def _death(name: str, unbroken: Path, folder: Path, seed: int) -> Death:
    """Draw where a run dies, given the times of the unbroken one."""
    draw, seconds = random.Random(seed), json.loads((unbroken / "seconds.json").read_text())
    # The time of a chunk and of writing a checkpoint.
    delay = draw.uniform(0.0, 0.01 + sorted(seconds)[len(seconds) // 2])
    # Pieces are counted when they are there, chunks when they begin to be reported.
    chunk = draw.randrange(len(seconds)) + (name not in PIECEWISE)
    return Death(folder, chunk, delay)


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
    args = parser.parse_args()
    n_faults = 0
    for name in args.runs:
        killed, faults = kill_and_resume(name, args.n, args.seed)
        print(*faults, sep="\n", end="\n" if faults else "")
        print(f"{name}: {killed} of {args.n} killed, {len(faults)} faults", flush=True)
        n_faults += len(faults)
        if args.record:
            outcomes = {"tried": args.n, "killed": killed, "faults": len(faults)}
            record(args.record, TRIAL, name, args.seed, outcomes)
    return int(n_faults > 0)


if __name__ == "__main__":
    sys.exit(main())
