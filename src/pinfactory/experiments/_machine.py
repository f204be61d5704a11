"""Where numbers were made: the machine, and the state of the source code."""

import platform
import subprocess
from pathlib import Path

import pinfactory


def processor() -> str:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def commit() -> str:
    """Return the commit of the checkout that this package is in, with "+" if it was changed.

    Empty if the package does not come from a checkout of its own.
    """
    package = Path(pinfactory.__file__).parent
    root = package.parents[1]
    if not (root / ".git").exists():
        return ""
    commands = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", str(package)])
    try:
        head, changes = (
            subprocess.run(
                ["git", "-C", str(root), *command], capture_output=True, text=True, check=True
            ).stdout.strip()
            for command in commands
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + ("+" if changes else "")
