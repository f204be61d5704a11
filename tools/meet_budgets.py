"""Ask committees for budgets of bits on bundled tables: `python tools/meet_budgets.py [TABLE …]`.

A stage that can use the bits processes them within 5 % on the training data, and never more. Where
it processes less, the estimator warns with the number reached. Every fit is printed; a budget that
is exceeded, or missed without a warning, is a fault, and the exit code is 1.
"""

import argparse
import os
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from counts import Trial, record

REGRESSIONS = ("diabetes", "linnerud")
TABLES = ("iris", "wine", "breast_cancer", "digits", *REGRESSIONS)
BUDGETS = {"selector": (0.0, 0.25, 0.5, 1.0), "expert": (0.0, 0.1, 0.5, 1.0)}
TRIAL = Trial(
    "met_budgets",
    "Budgets of bits",
    """
Committees with default settings but one budget, on the tables that come with scikit-learn. A budget
is met if the stage processes it within 5 % on the training data. Otherwise the stage must process
less, and the estimator warn of it; anything else is a fault.
""",
    "python tools/meet_budgets.py --record results",
)


class Fit(NamedTuple):
    """What a committee was asked for, what it reached, and whether it warned."""

    asked: float
    reached: float
    warned: bool

    @property
    def outcome(self) -> str:
        """Return "met", "missed and told" or "faults"; bits are counted to a thousandth."""
        if self.reached > 1.05 * self.asked + 1e-3:
            return "faults"
        if self.reached >= 0.95 * self.asked - 1e-3:
            return "met"
        return "missed and told" if self.warned else "faults"


def fit(table: str, stage: str, bits: float) -> Fit:
    """Fit a committee with one budget."""
    from sklearn import datasets
    from sklearn.exceptions import ConvergenceWarning

    from pinfactory import SpecialistClassifier, SpecialistRegressor

    x, y = getattr(datasets, f"load_{table}")(return_X_y=True)
    kind = SpecialistRegressor if table in REGRESSIONS else SpecialistClassifier
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        told = kind(random_state=0, **{f"{stage}_bits": bits}).fit(x, y).information_
    warned = any(f"`{stage}_bits`" in str(warning.message) for warning in caught)
    return Fit(bits, float(told.selector if stage == "selector" else told.experts), warned)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES)
    parser.add_argument("--record", type=Path, help="folder for the counts as a result")
    args = parser.parse_args()
    n_faults = 0
    for table in args.tables:
        for stage, budgets in BUDGETS.items():
            counts = Counter({"tried": len(budgets), "met": 0, "missed and told": 0, "faults": 0})
            for bits in budgets:
                done = fit(table, stage, bits)
                counts[done.outcome] += 1
                print(f"{table} {stage}: {bits:g} asked, {done.reached:.4g}: {done.outcome}")
                sys.stdout.flush()
            n_faults += counts["faults"]
            if args.record:
                record(args.record, TRIAL, f"{stage} of {table}", 0, counts)
    return int(n_faults > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
