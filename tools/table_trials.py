"""Fit committees to the tables on which defaults are chosen, by splits that are never reported.

    python tools/table_trials.py --out before.json
    python tools/table_trials.py --out after.json --against before.json    # with other code

Small samples of large tables, judged by rows that are left, say more about small tables than small
tables themselves: there is little noise in what they are judged by. An interrupted run continues.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.benchmarks._peers import linear_tree, one_line
from pinfactory.experiments.benchmarks._public_tables import TableSplit, load_split

# Splits from 0 on are reported.
FIRST_SEED = 10
# How many rows are learned from; 0 for three quarters of the table.
SIZES = {
    "DoctorVisits": (300, 600, 1500, 0),
    "NMES1988": (300, 800, 2000, 0),
    "Hitters": (0,),
    "CollegeDistance": (300, 800, 0),
    "Sacramento": (200, 400, 0),
    "College": (150, 300, 0),
    "Computers": (200, 600),
    "car_prices": (150, 300),
    "hotel_rates": (300, 1000),
    "deliveries": (200, 600),
    "HousePrices": (200, 0),
    "Carseats": (150, 0),
    "diabetes": (150, 0),
}
MOST_JUDGED = 2500
QUANTITIES = ("score", "log-likelihood", "in use", "seconds")


def split_of(table: str, rows: int, seed: int) -> TableSplit:
    """Return so many rows to learn from, and others to judge by."""
    split = load_split(table, seed)
    if not rows:
        return split
    X, y = np.vstack([split.X, split.X_test]), np.concatenate([split.y, split.y_test])
    order = np.random.default_rng(1000 + seed).permutation(len(y))
    own, judged = order[:rows], order[rows : rows + MOST_JUDGED]
    varies = X[own].std(axis=0) > 0
    return TableSplit(X[own][:, varies], y[own], X[judged][:, varies], y[judged], split.classify)


def trial(table: str, rows: int, seed: int, n_experts: int) -> dict[str, float]:
    """Return how good a committee is, and its lead over one line and over a linear tree's."""
    split = split_of(table, rows, seed)
    kind = SpecialistClassifier if split.classify else SpecialistRegressor
    model, began = kind(n_experts, random_state=seed), time.process_time()
    model.fit(split.X, split.y)
    seconds = time.process_time() - began
    peers = (one_line(split.classify), linear_tree(split.classify, seed, n_leaves=8))
    fitted = [model, *(peer.fit(split.X, split.y) for peer in peers)]
    score = accuracy_score if split.classify else r2_score
    mine, line, tree = (score(split.y_test, each.predict(split.X_test)) for each in fitted)
    if split.classify:
        probs = model.predict_proba(split.X_test)[np.arange(len(split.y_test)), split.y_test]
        likelihood = np.log(np.clip(probs, 1e-3, None))
    else:
        likelihood = model.score_samples(split.X_test, split.y_test)
    found = {
        "score": mine,
        "ahead of one line": mine - line,
        "tree ahead of one line": tree - line,
        "log-likelihood": np.mean(likelihood),
        "in use": model.effective_experts_,
        "seconds": seconds,
    }
    return {name: float(value) for name, value in found.items()}


def report(found: dict, before: dict) -> None:
    """Print every trial, then the changes since another run with their standard errors."""
    for name, values in found.items():
        print(f"{name:<32}", "  ".join(f"{key} {value:+.3f}" for key, value in values.items()))
    leads = np.array([values["ahead of one line"] for values in found.values()])
    print(f"behind one line by more than 0.005: {np.mean(leads < -0.005):.2f} of {len(leads)}")
    both = [name for name in found if name in before]
    for quantity in QUANTITIES if both else ():
        change = np.array([found[name][quantity] - before[name][quantity] for name in both])
        error = np.std(change, ddof=1) / np.sqrt(len(change)) if len(change) > 1 else 0.0
        print(f"change of {quantity:<16} {change.mean():+.4f} ± {error:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=[*SIZES])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    found = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for seed in range(FIRST_SEED, FIRST_SEED + asked.seeds):
        for table in asked.tables:
            for rows in SIZES.get(table, (0,)):
                name = f"{table}, {rows or 'all'} rows, split {seed}"
                if name not in found:
                    found[name] = trial(table, rows, seed, asked.experts)
                    asked.out.write_text(json.dumps(found, indent=1))
    report(found, json.loads(asked.against.read_text()) if asked.against else {})
