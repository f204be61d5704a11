"""What an experiment is: settings, pieces of work, a figure, and numbers to be judged by."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from matplotlib.figure import Figure

# Plain data: what JSON can hold.
Results = Mapping[str, Any]


@dataclass(frozen=True)
class Measure:
    """A number beside what was promised and what the paper prints.

    Attributes
    ----------
    name
        What was measured, such as "accuracy, circles, 4 experts".
    ours
        The mean over seeds.
    spread
        Standard deviation over seeds, where there are several.
    paper
        The number that the paper prints, if it does.
    target
        What we promise; without it the number is only reported.
    higher_is_better
        On which side of the target a number passes.
    """

    name: str
    ours: float
    spread: float | None = None
    paper: float | None = None
    target: float | None = None
    higher_is_better: bool = True

    @property
    def passed(self) -> bool | None:
        """Return whether the target is met; None without a target."""
        if self.target is None:
            return None
        return self.ours >= self.target if self.higher_is_better else self.ours <= self.target


@runtime_checkable
class Experiment(Protocol):
    """What a module in this folder has, to be found by `pinfactory reproduce`.

    `Settings` is a frozen dataclass with the class methods `quick(**changes)` and
    `paper(**changes)`, and a field `seeds`, the number of seeds. `pieces` names the parts of the
    work that are done, saved and resumed one by one, each a function without arguments that
    returns plain data. `draw` never trains, and a piece never draws.

    A module may also have `PLACE`, where the paper has the figure ("Section 4.1, Figure 3"), by
    which figures are sorted, and `explore(results)`, which returns an interactive picture for the
    page: a Plotly figure, or HTML that may use Plotly's JavaScript, which the page holds once.
    Packages that not everybody has are imported at the top of the module: where they are missing,
    the experiment is listed with a remark and not run. Whatever else it needs, such as a data set,
    is said by `lacks()`, which returns the remark, or an empty string if all is there.
    """

    TITLE: str
    ABOUT: str
    Settings: Any

    def pieces(self, settings: Any) -> Mapping[str, Callable[[], Any]]:
        """Return the parts of the work by name."""
        ...

    def draw(self, results: Results) -> Figure:
        """Turn the results of all pieces, by name, into the figure."""
        ...

    def measures(self, results: Results) -> list[Measure]:
        """Return the numbers that the figure stands for."""
        ...
