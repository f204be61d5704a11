"""Which experiments there are: every module of two folders whose name has no underscore first."""

import difflib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec
from typing import cast

from .experiment import Experiment, Kind

PACKAGES: Mapping[Kind, str] = {
    "figure": "pinfactory.experiments.figures",
    "benchmark": "pinfactory.experiments.benchmarks",
}
_PARTS = ("TITLE", "ABOUT", "Settings", "pieces", "measures")


@dataclass(frozen=True)
class Listing:
    """An experiment by name, or the reason why it cannot run here."""

    name: str  #: the module's name
    experiment: Experiment | None  #: the module; None if it cannot run
    remark: str = ""  #: what it lacks here; empty if it can run at once
    #: A figure (or table) of the paper, or a benchmark: a comparison with something else.
    kind: Kind = "figure"

    @property
    def place(self) -> str:
        """Return where the paper has it, such as "Section 4.1, Figure 3"."""
        return str(getattr(self.experiment, "PLACE", ""))


def discover(packages: Mapping[Kind, str] = PACKAGES) -> list[Listing]:
    """Return all experiments: by kind, in the order of the paper, those without a place last."""
    listings = []
    for kind, package in packages.items():
        modules = pkgutil.iter_modules(import_module(package).__path__)
        names = [m.name for m in modules if not m.name.startswith("_") and not m.ispkg]
        found = [_load(package, name, kind) for name in names]
        listings += sorted(found, key=lambda listing: (_position(listing.place), listing.name))
    return listings


def _load(package: str, name: str, kind: Kind) -> Listing:
    try:
        module = import_module(f"{package}.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pinfactory"):
            raise
        return Listing(name, None, _needs(error.name), kind)
    lacking = [part for part in _PARTS if not hasattr(module, part)]
    if lacking:
        return Listing(name, None, f"is no experiment: it lacks {', '.join(lacking)}", kind)
    for required in getattr(module, "REQUIRES", ()):
        if find_spec(required) is None:
            return Listing(name, None, _needs(required), kind)
    return Listing(name, cast(Experiment, module), getattr(module, "lacks", str)(), kind)


def _needs(module: str) -> str:
    package = module.partition(".")[0]
    return f"needs {package}: {how_to_install(package)}"


def how_to_install(package: str) -> str:
    """Return the command that installs a package: by an extra of ours if one has it."""
    for requirement in requires("pinfactory") or ():
        found = re.fullmatch(r"([\w.-]+).*extra == [\"'](\w+)[\"']", requirement)
        if found and re.sub(r"[-.]", "_", found[1]).lower() == package.lower():
            return f"pip install 'pinfactory[{found[2]}]'"
    return f"pip install {package}"


def _position(place: str) -> tuple[float, ...]:
    """Return the numbers in a place, so that places sort as they follow in the paper."""
    return (*map(float, re.findall(r"\d+", place)), float("inf"))


def choose(
    listings: Sequence[Listing], names: Sequence[str], kind: Kind | None = None
) -> list[Listing]:
    """Return experiments by name; without names, those of a kind (or all) that lack nothing."""
    if not names:
        return [x for x in listings if not x.remark and kind in (None, x.kind)]
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
