"""Density estimation side by side: quality on several sets, time and memory on a large one.

Quality is the mean held-out log-likelihood over seeds and folds, in nats per sample, with the same
number of components for all and everything else at its default. Time and memory are those of
processes of their own, with the same number of threads, one after the other.
Run as `python benchmarks/bench_density.py [quality] [small] [large] [--seeds 3] [--rows 1000000]`.
"""

import os

THREADS = os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["OPENBLAS_NUM_THREADS"] = THREADS
if THREADS == "1":
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, multivariate_normal
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_blobs,
)
from sklearn.decomposition import PCA
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import KFold

CENTRES = np.array([[-1.0, -1.0], [-1.0, 1.0], [1.0, 1.0], [1.0, -1.0]])


def four_gaussians(n: int, seed: int) -> np.ndarray:
    """Return the data of the paper's figure, with the fourth mean it intends."""
    random = np.random.default_rng(seed)
    return random.normal(CENTRES[random.integers(4, size=n)], np.sqrt(0.15))


def anisotropic(seed: int) -> np.ndarray:
    """Return three long clusters side by side."""
    blobs, _ = make_blobs(1000, centers=3, random_state=170 + seed)
    return blobs @ np.array([[0.6, -0.6], [-0.4, 0.8]])


def unequal(seed: int) -> np.ndarray:
    """Return a wide cluster of 700, a narrow one of 250 and a flat one of 50."""
    random = np.random.default_rng(seed)
    wide = random.normal(0, 2.5, (700, 2))
    narrow, flat = random.normal([8, 0], 0.5, (250, 2)), random.normal([0, 9], [1, 0.2], (50, 2))
    return np.vstack([wide, narrow, flat])


def flat(seed: int) -> np.ndarray:
    """Return 64 samples for each of 16 flat Gaussians in 8 dimensions, in the mean."""
    return large_data(1024, seed)[0]


SETS: dict[str, tuple[Callable[[int], np.ndarray], int]] = {
    "iris": (lambda seed: load_iris().data, 3),
    "wine": (lambda seed: load_wine().data, 3),
    "breast cancer": (lambda seed: load_breast_cancer().data, 2),
    "digits, 10 PCA": (lambda seed: PCA(10).fit_transform(load_digits().data), 10),
    "anisotropic": (anisotropic, 3),
    "unequal": (unequal, 3),
    "flat, 8 dimensions": (flat, 16),
    "four gaussians": (lambda seed: four_gaussians(1000, seed), 4),
}


def specialists(n: int, seed: int, **settings: Any) -> Any:
    """Return our estimator."""
    from pinfactory import SpecialistMixture

    return SpecialistMixture(n, random_state=seed, **settings)


def quality(seeds: int) -> None:
    """Print held-out log-likelihoods on all sets."""
    names = ["specialists", "n_init=4", "GaussianMixture", "n_init=4", "BayesianGM", "in use"]
    print(f"{'held-out nats per sample':26}" + "".join(f"{name:>17}" for name in names))
    for name, (load, n) in SETS.items():
        rows = []
        for seed in range(seeds):
            X = load(seed)
            for train, test in KFold(5, shuffle=True, random_state=seed).split(X):
                models = [
                    specialists(n, seed),
                    specialists(n, seed, n_init=4),
                    GaussianMixture(n, random_state=seed),
                    GaussianMixture(n, n_init=4, random_state=seed),
                    BayesianGaussianMixture(n_components=n, random_state=seed, max_iter=500),
                ]
                scores = [model.fit(X[train]).score(X[test]) for model in models]
                rows.append([*scores, np.sum(models[0].weights_ > 0)])
        means = np.mean(rows, axis=0)
        print(f"{name + f' ({n})':26}" + "".join(f"{value:17.3f}" for value in means), flush=True)

    print("\nfour gaussians, β₁ = 20, β₂ = 1, ratio of held-out log-likelihood to the true one")
    held_out = four_gaussians(50_000, 1234)
    parts = [multivariate_normal(mean, 0.15).logpdf(held_out) for mean in CENTRES]
    truth = np.mean(logsumexp(parts, axis=0) - np.log(4))
    for seed in range(10):
        X = four_gaussians(1000, seed)
        four, eight = (specialists(n, seed, beta_selector=20.0).fit(X) for n in (4, 8))
        kde = gaussian_kde(X.T).logpdf(held_out[:5000].T).mean()
        print(
            f"  seed {seed}: {four.score(held_out) / truth:.4f} with 4, "
            f"{eight.score(held_out) / truth:.4f} with 8 experts "
            f"({eight.effective_experts_:.2f} in use), Gaussian KDE {kde / truth:.4f}"
        )


def small() -> None:
    """Print the time of a fit to 1,024 samples once everything is compiled.

    Models take turns, so that what else the machine does troubles all of them alike. Processor time
    is what a fit costs; the wall clock adds what others took.
    """
    for name, X, n in (
        ("1,024 x 2, 4 components", four_gaussians(1024, 0), 4),
        ("1,024 x 8, 16 components", large_data(1024)[0], 16),
    ):
        print(f"\nsecond and later fits to {name}, in turns, milliseconds")
        models: dict[str, Callable[[int], Any]] = {
            "specialists": partial(specialists, n),
            "GaussianMixture": lambda seed, n=n: GaussianMixture(n, random_state=seed),
            "specialists, n_init=4": partial(specialists, n, n_init=4),
            "GaussianMixture, n_init=4": lambda seed, n=n: GaussianMixture(
                n, n_init=4, random_state=seed
            ),
            "BayesianGM": lambda seed, n=n: BayesianGaussianMixture(
                n_components=n, random_state=seed
            ),
        }
        times: dict[str, list[tuple[float, float]]] = {model: [] for model in models}
        for seed in range(41):
            for model, make in models.items():
                start, start_cpu = time.perf_counter(), time.process_time()
                make(seed).fit(X)
                taken = time.perf_counter() - start, time.process_time() - start_cpu
                times[model].append(taken)
        print(f"  {'':26}{'best':>8}{'median':>8}{'processor: best':>17}{'median':>8}{'first':>8}")
        for model, taken in times.items():
            wall, cpu = (
                sorted(1e3 * part for part in column) for column in zip(*taken[1:], strict=True)
            )
            first = 1e3 * taken[0][0]
            print(
                f"  {model:26}{wall[0]:8.1f}{statistics.median(wall):8.1f}"
                f"{cpu[0]:17.1f}{statistics.median(cpu):8.1f}{first:8.0f}",
                flush=True,
            )


def large_data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return training and held-out samples of 16 overlapping Gaussians in 8 dimensions."""
    random = np.random.default_rng(seed)
    means = random.normal(0, 3, (16, 8))
    roots = random.normal(0, 0.5, (16, 8, 8)) + np.eye(8)
    label = random.integers(16, size=n + 20_000)
    X = random.normal(size=(n + 20_000, 8))
    for m in range(16):
        X[label == m] = means[m] + X[label == m] @ roots[m]
    return X[:n], X[n:]


def peak_mb() -> float:
    """Return the most memory this program has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def large_one(name: str, n: int) -> None:
    """Fit to many samples; print time, memory and quality as JSON."""
    X, held_out = large_data(n)
    model = specialists(16, 0) if name == "specialists" else GaussianMixture(16, random_state=0)
    before = peak_mb()
    start, start_cpu = time.perf_counter(), time.process_time()
    model.fit(X)
    seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    peak = peak_mb()
    result = {
        "seconds": seconds,
        "cpu": cpu,
        "peak_mb": peak,
        "fit_mb": peak - before,
        "score": model.score(held_out),
        "n_iter": model.n_iter_,
    }
    print(json.dumps(result))


def large(n: int) -> None:
    """Compare time and memory on many samples, each in a process of its own."""
    print(f"\n{n:,} x 8, 16 components, {THREADS} thread(s), compilation included")
    results = {}
    for name in ("specialists", "gaussians"):
        command = [sys.executable, __file__, "--one", name, "--rows", str(n)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        results[name] = result = json.loads(done.stdout.splitlines()[-1])
        print(
            f"  {name:12} {result['seconds']:7.1f} s ({result['cpu']:.1f} s of processor), peak "
            f"{result['peak_mb']:.0f} MB, of which the fit {result['fit_mb']:.0f} MB, "
            f"held-out {result['score']:.4f}, {result['n_iter']} iterations",
            flush=True,
        )
    ratio = results["gaussians"]["cpu"] / results["specialists"]["cpu"]
    print(f"  {ratio:.1f} times faster (processor time)")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["quality", "small", "large"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.one:
        large_one(arguments.one, arguments.rows)
        return
    if "quality" in arguments.parts:
        quality(arguments.seeds)
    if "small" in arguments.parts:
        small()
    if "large" in arguments.parts:
        large(arguments.rows)


if __name__ == "__main__":
    main()
