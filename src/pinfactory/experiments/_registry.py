"""Which experiments there are: every module in this folder whose name has no underscore first."""

import difflib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import cast

from ._experiment import Experiment

_PARTS = ("TITLE", "ABOUT", "Settings", "pieces", "draw", "measures")


@dataclass(frozen=True)
class Listing:
    """An experiment by name, or the reason why it cannot run here.

    Attributes
    ----------
    name
        The module's name.
    experiment
        The module; None if it cannot be imported.
    remark
        What it lacks here; empty if it can run at once.
    """

    name: str
    experiment: Experiment | None
    remark: str = ""

    @property
    def place(self) -> str:
        """Return where the paper has it, such as "Section 4.1, Figure 3"."""
        return str(getattr(self.experiment, "PLACE", ""))


def discover(package: str = "pinfactory.experiments") -> list[Listing]:
    """Return all experiments in the order of the paper; those without a place come last."""
    folder = import_module(package).__path__
    names = [module.name for module in pkgutil.iter_modules(folder)]
    listings = [_load(package, name) for name in names if not name.startswith("_")]
    return sorted(listings, key=lambda listing: (_position(listing.place), listing.name))


def _load(package: str, name: str) -> Listing:
    try:
        module = import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pinfactory"):
            raise
        missing = error.name.partition(".")[0]
        return Listing(name, None, f"needs {missing}: pip install 'pinfactory[all]'")
    lacking = [part for part in _PARTS if not hasattr(module, part)]
    if lacking:
        return Listing(name, None, f"is no experiment: it lacks {', '.join(lacking)}")
    return Listing(name, cast(Experiment, module), getattr(module, "lacks", str)())


def _position(place: str) -> tuple[float, ...]:
    """Return the numbers in a place, so that places sort as they follow in the paper."""
    return (*map(float, re.findall(r"\d+", place)), float("inf"))


def choose(listings: Sequence[Listing], names: Sequence[str]) -> list[Listing]:
    """Return the experiments of the given names, or all that lack nothing if none are given."""
    if not names:
        return [listing for listing in listings if not listing.remark]
    known = {listing.name: listing for listing in listings}
    wanted = []
    for name in dict.fromkeys(name.replace("-", "_") for name in names):
        if name not in known:
            near = difflib.get_close_matches(name, known, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}" if near else "--list prints all names"
            raise ValueError(f"NAMES must be names of experiments, but got {name!r}: {hint}")
        if known[name].experiment is None:
            raise ValueError(f"{name} cannot run here: it {known[name].remark}")
        wanted.append(known[name])
    return wanted
