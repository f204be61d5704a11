"""What an experiment is: settings, pieces of work, a figure, and numbers to be judged by."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from scipy.stats import median_abs_deviation

# Plain data: what JSON can hold.
Results = Mapping[str, Any]
Kind = Literal["figure", "benchmark"]


@dataclass(frozen=True)
class Measure:
    """A measured number, with our target and the paper's number if there are any."""

    #: What was measured, in parts parted by commas: the quantity first, then what it is of, such
    #: as "accuracy, circles, 4 experts". Tables are made of these parts.
    name: str
    ours: float  #: the mean over seeds
    spread: float | None = None  #: standard deviation over seeds, where there are several
    paper: float | None = None  #: the number that the paper prints, if it does
    target: float | None = None  #: what we promise; without it the number is only reported
    higher_is_better: bool = True  #: on which side of the target a number passes
    n: int | None = None  #: number of seeds or repeats, where the number is their mean
    #: Of the number: "s", "µs", "MB", "bit"; "×" for a ratio of two things measured in one run.
    unit: str = ""
    #: The same number for the paper's method to the letter, if that was run.
    paper_method: float | None = None

    @classmethod
    def over(cls, name: str, values: Sequence[float] | np.ndarray, **more: Any) -> "Measure":
        """Return the mean of values, one for each seed, with their deviation if there are more."""
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(name, float(np.mean(values)), spread, n=len(values), **more)

    @classmethod
    def median(cls, name: str, values: Sequence[float] | np.ndarray, **more: Any) -> "Measure":
        """Return the median of turns, some of which something else disturbed.

        Its spread is the median absolute deviation, scaled to be the standard deviation of normal
        values.
        """
        several = len(values) > 1
        spread = float(median_abs_deviation(values, scale="normal")) if several else None
        return cls(name, float(np.median(values)), spread, n=len(values), **more)

    @property
    def passed(self) -> bool | None:
        """Return whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.ours >= self.target if self.higher_is_better else self.ours <= self.target


# The run-time check of types knows `Self` in decorated classes only.
S = TypeVar("S", bound="Presets")


@dataclass(frozen=True)
class Presets:
    """Settings whose defaults are the full measurement, and `QUICK` what the quick one changes."""

    QUICK: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def quick(cls: type[S], **changes: Any) -> S:
        """Return the settings of `make run` and `make bench`."""
        return cls(**{**cls.QUICK, **changes})

    @classmethod
    def paper(cls: type[S], **changes: Any) -> S:
        """Return the full settings."""
        return cls(**changes)


class Unused:
    """In place of a setting that a piece does not depend on; reading its value is an error."""

    def _refuse(self, *_: Any) -> Any:
        raise TypeError("a piece uses a setting that its experiment declares as unused")

    __bool__ = __eq__ = __iter__ = __len__ = __index__ = __float__ = __str__ = _refuse
    __hash__ = None  # type: ignore[assignment]


def without(settings: S, *names: str) -> S:
    """Return settings for pieces that do not depend on some of them.

    A stored piece holds as long as the arguments bound to it are the same. Settings that only say
    which pieces there are, such as seeds or peers, are left out this way, so that others keep the
    pieces that are there.
    """
    changed = copy(settings)
    for name in names:
        getattr(settings, name)  # must be there
        object.__setattr__(changed, name, Unused())  # settings are frozen
    return changed


@runtime_checkable
class Experiment(Protocol):
    """What a module in this folder or in `benchmarks` has, to be found by `pinfactory reproduce`.

    `Settings` is a frozen dataclass with the class methods `quick(**changes)` and
    `paper(**changes)`, best derived from `Presets`, and a field `seeds`, the number of seeds.
    `pieces` names the parts of the work that are done, saved and resumed one by one, each a
    function without arguments that returns plain data: best a `partial` of a function of the module
    with what it uses, as that is what a saved piece depends on (`without`). Pieces run in processes
    of their own, several at a time.

    A module may also have

    - `draw(results)`: turns the results of all pieces, by name, into the figure. It never trains,
      and a piece never draws. Without it all measures are drawn, or those whose names begin with
      one of `DRAWN`; the quantities in `LOG_SCALE` on a logarithmic scale.
    - `PLACE`: where the paper has the figure ("Section 4.1, Figure 3"), by which figures are
      sorted.
    - `opening(results)`: one claim in a sentence and a small picture of it. The page opens with
      the first of them.
    - `explore(results)`: an interactive picture for the page, as HTML with its own script.
    - `REQUIRES`: names of packages that not everybody has. Where one is missing, the experiment
      is listed with a remark and not run.
    - `lacks()`: a remark on what else is missing, such as a data set; empty if all is there.
    - `skipped()`: peers that are left out because they are not installed, each with the command
      that installs it.
    - `ALONE = True`: its pieces measure time, and run one after the other on one core, with no
      other piece beside them and without a cache of compiled programs.
    """

    TITLE: str
    ABOUT: str
    Settings: Any

    def pieces(self, settings: Any) -> Mapping[str, Callable[[], Any]]:
        """Return the parts of the work by name."""
        ...

    def measures(self, results: Results) -> list[Measure]:
        """Return the numbers that the figure stands for."""
        ...
