"""The paper's three synthetic tasks with 1, 2 and 4 linear experts and a network that selects."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pinfactory import SpecialistClassifier
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.style import counted
from pinfactory.experiments.synthetic_data import COMMITTEE, TASKS, classification

TITLE = "The paper's tasks with a network as selector"
ABOUT = """
Half moons, circles and blobs by the paper's protocol: 1,024 samples, 20 % of them held out. Data,
split and committee depend on the seed. Experts are linear and the selector is a network, as in
Section 4.1. The best of five random starts on held-out rows is kept, J is maximised at β₁ = 5, and
training ends when held-out rows no longer improve.
"""

_TARGETS = {"circles": 0.98, "blobs": 0.98, "moons": 0.93}


@dataclass(frozen=True)
class Settings(Presets):
    """Tasks and committees."""

    seeds: int = 10
    n_experts: tuple[int, ...] = (1, 2, 4)

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every task and number of experts."""
    own = without(settings, "n_experts")
    return {
        f"{task}, {n} experts": partial(_fit, own, task, n)
        for n in settings.n_experts
        for task in TASKS
    }


def _fit(settings: Settings, task: str, n_experts: int) -> dict[str, Any]:
    found: dict[str, Any] = {"accuracy": [], "I(X;M)": [], "I(X;Y|M)": []}
    for seed in range(settings.seeds):
        split = classification(task, 1024, seed)
        committee = SpecialistClassifier(
            n_experts,
            beta_selector=5.0,
            max_iter=10_000,
            batch_size=32,
            learning_rate=3e-3,
            n_init=5,
            random_state=seed,
            **COMMITTEE,
        ).fit(split.X, split.y)
        found["accuracy"].append(committee.score(split.X_test, split.y_test))
        found["I(X;M)"].append(committee.information_.selector)
        found["I(X;Y|M)"].append(committee.information_.experts)
    return found | {"task": task, "n_experts": n_experts}


def measures(results: Results) -> list[Measure]:
    """Return accuracies, and the bits of both stages."""
    rows = []
    for quantity, unit in (("accuracy", ""), ("I(X;M)", "bit"), ("I(X;Y|M)", "bit")):
        for task in TASKS:
            for piece in results.values():
                if piece["task"] == task:
                    four = quantity == "accuracy" and piece["n_experts"] == 4
                    rows.append(
                        Measure.over(
                            f"{quantity}, {task}, {counted(piece['n_experts'], 'expert')}",
                            piece[quantity],
                            unit=unit,
                            target=_TARGETS[task] if four else None,
                        )
                    )
    return rows
