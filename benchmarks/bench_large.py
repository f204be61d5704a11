"""Large tables and many experts: memory and time of `fit` by rows, time of `predict` by experts.

A fit makes one pass in batches of 256. Memory is the growth of the peak resident set over what was
there before the first `fit`, in units of the table (float64); each number of rows has a process of
its own. Time is processor time, the best of three fits, the first of which compiles.
"""

import json
import resource
import subprocess
import sys
import time

import numpy as np

ROWS, FEATURES, BATCH = (125_000, 250_000, 500_000, 1_000_000), 20, 256
REPEATS = 3
EXPERTS = (1, 4, 16, 64, 256, 1024)


def fit(n_rows: int) -> None:
    """Fit a few times and print seconds and memory."""
    from pinfactory import SpecialistClassifier

    random = np.random.default_rng(0)
    X = random.normal(size=(n_rows, FEATURES))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    settings = {"batch_size": BATCH, "n_init": 1, "random_state": 0}
    SpecialistClassifier(max_iter=10, **settings).fit(X[:2000], y[:2000])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds, grown = [], []
    for _ in range(REPEATS):
        began = time.process_time()
        SpecialistClassifier(max_iter=n_rows // BATCH, **settings).fit(X, y)
        seconds.append(time.process_time() - began)
        grown.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before)
    print(json.dumps({"seconds": min(seconds), "memory": grown[0] / X.nbytes}))


def predict() -> None:
    """Print what a prediction by the most responsible expert costs beside the selector alone."""
    from pinfactory import SpecialistClassifier

    random = np.random.default_rng(0)
    X = random.normal(size=(8192, FEATURES))
    y = random.integers(0, 3, len(X))
    print("\nexperts   selector   best expert   mixture   (µs a row)   best / selector")
    for n_experts in EXPERTS:
        committee = SpecialistClassifier(n_experts, max_iter=20, n_init=1, random_state=0)
        committee.fit(X[:2000], y[:2000])
        costs = []
        for ask in (
            committee.responsibilities,
            lambda X: committee.predict_proba(X, routing="best"),  # noqa: B023
            committee.predict_proba,
        ):
            ask(X)
            times = []
            for _ in range(5):
                began = time.perf_counter()
                ask(X)
                times.append(time.perf_counter() - began)
            costs.append(1e6 * min(times) / len(X))
        print(f"{n_experts:7d} {costs[0]:10.2f} {costs[1]:13.2f} {costs[2]:9.2f} "
              f"{'':12} {costs[1] / costs[0]:10.2f}")  # fmt: skip


def main() -> None:
    """Print both tables."""
    print("     rows   seconds   seconds per million rows   memory / table (promised: below 3)")
    for n_rows in ROWS:
        command = [sys.executable, __file__, str(n_rows)]
        result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        print(f"{n_rows:9d} {result['seconds']:9.1f} {1e6 * result['seconds'] / n_rows:26.1f} "
              f"{result['memory']:16.2f}")  # fmt: skip
    predict()


if __name__ == "__main__":
    fit(int(sys.argv[1])) if len(sys.argv) > 1 else main()
