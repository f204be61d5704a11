"""Run tests with the versions of this environment: `python tools/tested_versions.py TEST …`.

`make test-python` and `make test-lowest` prepare other environments. With `--record results` the
numbers of tests that passed, were skipped and failed become a row of a result; `--more` adds them
to those of the row.
"""

import argparse
import platform
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest

TRIAL = (
    "tested_versions",
    "Tests with other versions of Python and libraries",
    """
Tests that were run in an environment, those of them that passed and that were skipped because they
need what is not installed there, and those that failed.
""",
    "make test-python PYTHON=python3.13 TESTS='--record results tests/test_facades.py'",
)


class Outcomes:
    """Counts how tests end."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter(tried=0, passed=0, skipped=0, faults=0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test when it was called, or could not be."""
        if report.when != "call" and report.passed:
            return
        outcome = "faults" if report.failed else str(report.outcome)
        self.counts.update(["tried", outcome])


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--record", type=Path, help="folder for the counts as a result")
    parser.add_argument("--more", action="store_true", help="add to the counts in --record")
    args, tests = parser.parse_known_args()
    outcomes = Outcomes()
    code = int(pytest.main(["-q", *tests], plugins=[outcomes]))
    # After the tests, which check the types of modules as they are imported.
    from counts import Trial, record, recorded

    python, jax, numpy = platform.python_version(), version("jax"), version("numpy")
    kind = f"Python {python} with JAX {jax} and NumPy {numpy}"
    if args.more:
        outcomes.counts.update(recorded(args.record, Trial(*TRIAL), kind))
    print(f"{kind}: {dict(outcomes.counts)}")
    if args.record:
        record(args.record, Trial(*TRIAL), kind, 0, outcomes.counts)
    return code


if __name__ == "__main__":
    sys.exit(main())
