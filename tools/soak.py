"""Learn for many minutes in one process and watch its memory: `python tools/soak.py [MINUTES]`.

Rounds follow each other: `partial_fit` of a mixture, fits of a classifier and a regressor on tables
of changing shapes, and a training of an agent. The memory of the process is printed along the way.
The first third is a warm-up, in which programs are compiled. After it memory must be flat: the
median of the last quarter of the time may be at most `MOST_GROWTH` above that of the quarter after
the warm-up. Otherwise the exit code is 1.
"""

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from counts import Trial, record

# Megabytes. The library keeps the programs of some shapes of data, so that memory moves by some.
MOST_GROWTH = 100
TRIAL = Trial(
    "soak",
    "Memory of a process that learns for many minutes",
    """
`partial_fit` of a mixture, fits of a classifier and a regressor on tables of changing shapes, and
trainings of an agent, again and again in one process. Memory is the median of the resident memory
over a quarter of the time: just after the warm-up of a third of the time, and at the end.
""",
    "python tools/soak.py 30 --record results",
)


class Sample(NamedTuple):
    """Memory after so many seconds and rounds."""

    seconds: float
    rounds: int
    megabytes: float


def resident() -> float:
    """Return the memory that the process has now, in megabytes (Linux)."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _table(n: int, d: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = random.normal(size=(n, d))
    return x, np.abs(x[:, 0]) + 0.1 * random.normal(size=n)


def rounds() -> Iterator[Callable[[], object]]:
    """Yield what is done next, for ever; the shapes of tables hardly repeat."""
    from pinfactory import SpecialistClassifier, SpecialistMixture, SpecialistRegressor
    from pinfactory.rl import SpecialistAgent
    from pinfactory.rl.envs import Pendulum

    random = np.random.default_rng(0)
    mixture = SpecialistMixture(4, random_state=0)
    small = {"n_envs": 4, "n_steps": 16, "batch_size": 32, "n_epochs": 1, "max_episode_steps": 16}
    while True:
        x, _ = _table(int(random.integers(50, 500)), 3, random)
        yield lambda x=x: mixture.partial_fit(x)
        x, y = _table(int(random.integers(50, 500)), int(random.integers(1, 9)), random)
        settings = {"n_experts": int(random.integers(2, 6)), "max_iter": 20, "random_state": 0}
        yield lambda x=x, y=y, s=settings: SpecialistRegressor(**s).fit(x, y)
        yield lambda x=x, y=y, s=settings: SpecialistClassifier(**s).fit(x, y > np.median(y))
        experts = int(random.integers(1, 4))
        yield lambda m=experts: SpecialistAgent(Pendulum(), m, **small).learn(128)


def soak(
    work: Iterator[Callable[[], object]],
    seconds: float,
    report: Callable[[Sample], None] = lambda sample: None,
    now: Callable[[], float] = time.monotonic,
    memory: Callable[[], float] = resident,
) -> list[Sample]:
    """Do one round after the other until the time is over; return the memory after each."""
    begin, samples = now(), []
    while not samples or samples[-1].seconds < seconds:
        next(work)()
        samples.append(Sample(now() - begin, len(samples) + 1, memory()))
        report(samples[-1])
    return samples


def early_and_late(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the median memory of the quarter after the warm-up, and of the last quarter."""
    end = samples[-1].seconds
    early = [s.megabytes for s in samples if end / 3 <= s.seconds <= end / 3 + end / 4]
    late = [s.megabytes for s in samples if s.seconds >= 3 * end / 4]
    if not early:
        raise ValueError("too few rounds: soak for longer")
    return statistics.median(early), statistics.median(late)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=30.0)
    parser.add_argument("--record", type=Path, help="folder for the numbers as a result")
    args = parser.parse_args()
    shown = -np.inf

    def report(sample: Sample) -> None:
        nonlocal shown
        if sample.seconds - shown >= 30:
            shown = sample.seconds
            minutes = sample.seconds / 60
            print(f"{minutes:6.1f} min {sample.rounds:6d} {sample.megabytes:8.0f} MB", flush=True)

    warnings.simplefilter("ignore")
    samples = soak(rounds(), 60 * args.minutes, report)
    early, late = early_and_late(samples)
    flat = late - early <= MOST_GROWTH
    print(
        f"{early:.0f} MB after the warm-up, {late:.0f} MB in the end: {'flat' if flat else 'NOT'}"
    )
    if args.record:
        outcomes = {"tried": len(samples), "minutes": round(samples[-1].seconds / 60)}
        memory = {"MB after the warm-up": round(early), "MB in the end": round(late)}
        record(args.record, TRIAL, "rounds", 0, outcomes | memory | {"faults": int(not flat)})
    return int(not flat)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
