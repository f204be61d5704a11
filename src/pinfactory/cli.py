"""The command `pinfactory`: every function in `COMMANDS` is a subcommand."""

import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from pinfactory.experiments import Listing, Outcome

# What a subcommand computes with is imported inside it, so that `pinfactory --help` is quick.


def reproduce(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = (),
    scale: Literal["quick", "paper"] = "quick",
    seeds: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    out: Path = Path("out"),
    list_only: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="list")] = False,
) -> int:
    """Make the paper's figures and tables again, with one page that shows them all.

    A run that was interrupted goes on where it was.

    Parameters
    ----------
    names
        Which figures; all of them by default.
    scale
        quick takes minutes on two cores; paper has the sizes and seeds of the paper.
    seeds
        Number of seeds instead of that of the scale.
    out
        Folder for everything; made if it is not there.
    list_only
        Print what there is, and do nothing.
    """
    if seeds is not None and seeds < 1:
        raise ValueError(f"--seeds must be at least 1, but got {seeds}")

    from pinfactory.experiments import choose, discover, run

    listings = discover()
    if list_only:
        _print_list(listings)
        return 0
    chosen = choose(listings, names)
    out.mkdir(parents=True, exist_ok=True)
    outcomes = run(chosen, out, scale=scale, seeds=seeds, report=_print_outcome)
    _print_page(out, listings)
    return 1 if any(outcome.error for outcome in outcomes) else 0


COMMANDS = {"reproduce": reproduce}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return the exit code.

    0 for success, 1 if an experiment failed, 2 for a wrong request, 130 after Ctrl-C. An
    experiment that falls short of its targets has not failed.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if arguments == ["--version"]:
        print(f"pinfactory {version('pinfactory')}")
        return 0
    try:
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="pinfactory",
            description="Learning systems that divide labour. --version prints the version.",
            args=arguments,
        )
    except SystemExit as stop:  # how tyro ends after --help or a mistyped option
        return int(stop.code or 0)
    except (ValueError, OSError) as error:
        print(f"pinfactory: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("pinfactory: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


def _print_list(listings: "Sequence[Listing]") -> None:
    for listing in listings:
        place = f" · {listing.place}" if listing.place else ""
        title = [] if listing.experiment is None else [listing.experiment.TITLE]
        remark = textwrap.wrap(listing.remark, 75)
        print(f"{listing.name}{place}", *title, *remark, sep="\n    ")


def _print_outcome(outcome: "Outcome") -> None:
    """Print one experiment: its verdict, and the numbers that have a target."""
    judged = [measure for measure in outcome.measures if measure.passed is not None]
    missed = [measure for measure in judged if not measure.passed]
    if outcome.error:
        verdict = "FAILED"
    elif not judged:
        verdict = "reported"
    else:
        verdict = "falls short" if missed else "passed"
    print(f"{outcome.name:<48.48}{verdict:>15}{outcome.seconds:>13.0f} s")
    if outcome.error:
        print(f"    {outcome.error.splitlines()[0]}"[:79])
    for measure in judged:
        sign = "≥" if measure.higher_is_better else "≤"
        wanted = f"{sign} {measure.target:.4g}"
        print(f"    {measure.name:<48.48} {measure.ours:>10.4g} {wanted:>12}")


def _print_page(out: Path, listings: "Sequence[Listing]") -> None:
    try:
        from pinfactory.report import write_page

        print(f"\n{write_page(out, listings)}")
    except ImportError as error:
        print(f"\nwritten to {out}; no page: {error}")
