"""Compare the speed of two commits: `python tools/compare_commits.py OLD [NEW]`.

Both are checked out into folders of their own, and a process of each does the same work in turns on
the same machine: a fit of the paper's committee, a fit of a mixture, the training of an agent and
of a meta-learner, each after a first round that compiles. Printed is the processor time of NEW
divided by that of OLD, the median of all turns and its standard error. Above `MOST`, the exit code
is 1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from counts import Trial, record
from speed_work import WORK

# A commit may be 5 % slower; two standard errors of what a noisy machine shows are allowed.
MOST = 1.05
TRIAL = Trial(
    "compared_commits",
    "Speed beside an earlier commit",
    """
Two commits do the same work in turns on one machine, each in a process of its own, after a round
that compiles. "time" is the processor time of the later commit divided by that of the earlier one:
the median over all turns, with its standard error.
""",
    "python tools/compare_commits.py 5150504 --record results",
)


def start(commit: str, folder: Path) -> subprocess.Popen[str]:
    """Check a commit out and start a process that works with it."""
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], check=True)
    return subprocess.Popen(
        [sys.executable, Path(__file__).with_name("speed_work.py")],
        env=os.environ | {"PYTHONPATH": str(folder / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process: subprocess.Popen[str], name: str) -> float:
    """Let a process do a piece of work; return its processor time."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{name}\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise RuntimeError(f"{name}: the process has ended")


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old")
    parser.add_argument("new", nargs="?", default="HEAD")
    parser.add_argument("--work", nargs="+", default=list(WORK), choices=list(WORK))
    parser.add_argument("-n", type=int, default=15, help="turns of each")
    parser.add_argument("--record", type=Path, help="folder for the ratios as a result")
    args = parser.parse_args()
    slower = 0
    with tempfile.TemporaryDirectory() as place:
        folders = [Path(place, "old"), Path(place, "new")]
        commits = [args.old, args.new]
        processes = [start(*pair) for pair in zip(commits, folders, strict=True)]
        for name in args.work:
            times = np.array([[ask(p, name) for p in processes] for _ in range(args.n)])
            ratios = times[:, 1] / times[:, 0]
            # The standard error of a median of normal values.
            ratio, error = np.median(ratios), 1.25 * ratios.std(ddof=1) / np.sqrt(args.n)
            print(f"{name}: {ratio:.3f} ± {error:.3f} of the time before", flush=True)
            slower += bool(ratio - 2 * error > MOST)
            if args.record:
                outcomes = {"tried": args.n, "time": ratio, "error": error}
                fault = {"faults": int(ratio - 2 * error > MOST)}
                record(args.record, TRIAL, name, 0, outcomes | fault)
        for process, folder in zip(processes, folders, strict=True):
            process.kill()
            subprocess.run(["git", "worktree", "remove", "--force", folder], check=True)
    return int(slower > 0)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
