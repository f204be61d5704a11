"""The command `pinfactory`: every function in `COMMANDS` is a subcommand."""

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from io import TextIOWrapper

import tyro

from .compare import compare
from .curve import curve
from .density import density
from .fit import fit
from .models import card, explain, predict
from .reproduce import reproduce
from .results import results
from .sweep import sweep

COMMANDS: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        *(fit, predict, explain, card, compare, curve, density),
        *(reproduce, results, sweep),
    )
}
# Those that keep what is finished.
STORING = ("reproduce", "sweep")


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Show warnings as one line, without the place in the source, and each of them once."""
    before = warnings.formatwarning
    shown: set[str] = set()

    def line(message: str) -> str:
        new = message not in shown
        shown.add(message)
        return f"pinfactory: {message}\n" if new else ""

    warnings.formatwarning = lambda message, *_: line(str(message))
    try:
        yield
    finally:
        warnings.formatwarning = before


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code.

    0 for success, 1 if an experiment or a point of a sweep failed or a result got worse, 2 for a
    wrong request, 130 after Ctrl-C. An experiment that falls short of its targets has not failed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if arguments == ["--version"]:
        print(f"pinfactory {version('pinfactory')}")
        return 0
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # β, ≤ and ² where only ASCII can be printed
    try:
        with _short_warnings():
            return tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                prog="pinfactory",
                description="Learning systems that divide labour. --version prints the version.",
                args=arguments,
            )
    except SystemExit as stop:  # how tyro ends after --help or a mistyped option
        return int(stop.code or 0)
    except BrokenPipeError:  # what reads the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:
        print(f"pinfactory: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        goes_on = "; the same command goes on from here" if arguments[0] in STORING else ""
        print(f"pinfactory: interrupted{goes_on}", file=sys.stderr)
        return 130
