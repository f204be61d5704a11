"""Squares of small numbers, written down as they are computed; told to misbehave by files."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pinfactory.experiments import Measure

TITLE, ABOUT, PLACE = "Squares", "About `them`.", "Section 1"


@dataclass(frozen=True)
class Settings:
    seeds: int = 3
    n: int = 4

    @classmethod
    def quick(cls, **changes):
        return cls(**changes)

    @classmethod
    def paper(cls, **changes):
        return cls(**{"n": 5} | changes)


def pieces(settings):
    return {f"piece {i}/": lambda i=i: _compute(settings, i) for i in range(settings.n)}


def _compute(settings, i):
    folder = Path(os.environ["TOY_FOLDER"])
    (folder / f"began {i}").write_text(str(os.getpid()))
    trouble = folder / f"trouble {i}"
    match trouble.read_text() if trouble.exists() else "":
        case "raise":
            raise RuntimeError("no wire left")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "wait":
            time.sleep(3600)
        case "odd":
            return object()
        case "meet":  # until another piece has begun, too
            deadline = time.monotonic() + 600
            while len(list(folder.glob("began *"))) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.01)
    with (folder / "computed").open("a") as log:
        log.write(f"{i}\n")
    cores = len(os.sched_getaffinity(0))
    return {"square": np.float32(i) ** 2, "seeds": settings.seeds, "cores": cores}


def draw(results):
    figure = Figure()
    axes = figure.subplots()
    axes.scatter(*np.random.default_rng(0).normal(size=(2, 5000)))
    return figure


def measures(results):
    squares = [piece["square"] for piece in results.values()]
    return [
        Measure("mean, of squares", float(np.mean(squares)), float(np.std(squares)), target=3.0),
        Measure("nothing", float("nan"), paper=2.0),
    ]


def opening(results):
    return f"{len(results)} squares.", Figure()


def explore(results):
    return "<p>four squares</p>"
