"""The command `pinfactory reproduce`."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import tyro

from ._arguments import named, value

if TYPE_CHECKING:
    from pinfactory.experiments import Listing, Outcome

# What a command computes with is imported inside it, so that `pinfactory --help` is quick.


def reproduce(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME …]")] = (),
    kind: Literal["figure", "benchmark", "all"] = "figure",
    scale: Literal["quick", "paper"] = "quick",
    method: Literal["ours", "paper", "both"] = "ours",
    seeds: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="NAME=VALUE …")] = (),
    jobs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    scheduler: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None,
    out: Path = Path("out"),
    list_only: Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(name="list")] = False,
) -> int:
    """Reproduce the paper's figures and the benchmarks on one HTML page.

    An interrupted run continues where it stopped.

    Parameters
    ----------
    names
        Which experiments; all of the kind by default.
    kind
        Without names: the paper's figures and tables, the benchmarks, or both.
    scale
        quick takes minutes on two cores; paper, with the seeds of the paper, up to an hour.
    method
        Our method, the paper's exact method, or both.
    seeds
        Number of seeds instead of that of the scale.
    settings
        Other settings of the experiments that are named: n_experts=[1,16] max_iter=500.
    jobs
        Number of processes; one for each core by default.
    scheduler
        A Dask scheduler whose workers compute, such as tcp://10.0.0.1:8786.
    out
        Folder for everything; created if missing.
    list_only
        Print the list of experiments and stop.
    """
    for option, number in (("--seeds", seeds), ("--jobs", jobs)):
        if number is not None and number < 1:
            raise ValueError(f"{option} must be at least 1, but got {number}")

    from pinfactory.experiments import choose, discover, has_methods, run

    listings = discover()
    wanted = [x for x in listings if kind in ("all", x.kind)]
    if list_only:
        _print_list(wanted)
        return 0
    chosen = choose(listings, names, None if kind == "all" else kind)
    only_ours = [x.name for x in chosen if not has_methods(x.experiment)]
    if names and method != "ours" and only_ours:
        raise ValueError(f"--method must be ours for {', '.join(only_ours)}, but got {method}")
    changes = _changes(chosen if names else [], settings)
    _print_left_out(chosen, [] if names else wanted)
    out.mkdir(parents=True, exist_ok=True)

    def report(outcome: "Outcome") -> None:
        _print_outcome(outcome)
        _write_page(out, listings)

    outcomes = run(
        chosen,
        out,
        scale=scale,
        changes=changes if seeds is None else changes | {"seeds": seeds},
        method=method,
        jobs=jobs,
        scheduler=scheduler,
        report=report,
    )
    print(f"\n{_write_page(out, listings)}")
    return 1 if any(outcome.error for outcome in outcomes) else 0


def _changes(chosen: "Sequence[Listing]", settings: Sequence[str]) -> dict[str, Any]:
    """Return the settings that are to be changed, each of the kind that the experiments have."""
    if settings and not chosen:
        raise ValueError("--set needs the names of the experiments that it is for")
    changes = dict(named("--set", text, value) for text in settings)
    for listing in chosen:
        known = {part.name: part.default for part in fields(cast(Any, listing.experiment).Settings)}
        known.pop("method", None)  # which is an option of its own
        for name, new in changes.items():
            if name not in known:
                raise ValueError(
                    f"--set must name settings of {listing.name} ({', '.join(known)}), "
                    f"but got {name!r}"
                )
            if not _is_like(new, known[name]):
                example = known[name] if known[name] != () else (1, 2)
                like = json.dumps(example).replace(" ", "")
                raise ValueError(f"--set must be like {name}={like}, but got {new!r}")
    return {name: tuple(new) if isinstance(new, list) else new for name, new in changes.items()}


def _is_like(new: Any, default: Any) -> bool:
    """Return whether a value is of the kind of a default; without one, any is."""
    if default is None:
        return True
    kind = list if isinstance(default, tuple) else type(default)
    return type(new) is kind or (kind is float and type(new) is int)


def _print_list(listings: "Sequence[Listing]") -> None:
    for listing in listings:
        place = f" · {listing.place}" if listing.place else ""
        title = [] if listing.experiment is None else [listing.experiment.TITLE]
        remark = textwrap.wrap(listing.remark, 75)
        print(f"{listing.name}{place}", *title, *remark, sep="\n    ")


def _print_left_out(chosen: "Sequence[Listing]", wanted: "Sequence[Listing]") -> None:
    """Print which experiments cannot run here, and which run without some peer."""
    for listing in wanted:
        if listing not in chosen:
            _print_wrapped(f"{listing.name} is left out: it {listing.remark}")
    for listing in chosen:
        for peer, command in getattr(listing.experiment, "skipped", dict)().items():
            _print_wrapped(f"{listing.name} goes without {peer}: {command}")


def _print_wrapped(text: str) -> None:
    print(textwrap.fill(text, 79, subsequent_indent="    ", break_on_hyphens=False))


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


def _write_page(out: Path, listings: "Sequence[Listing]") -> str:
    """Write the page with what is there by now; return what to tell about it."""
    try:
        from pinfactory.report import write_page

        return str(write_page(out, listings))
    except ImportError as error:
        return f"written to {out}; no page: {error}"
