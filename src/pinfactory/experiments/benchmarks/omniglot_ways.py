"""Tasks of 5 and 20 characters: our networks and baselines on the test that others publish."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from pinfactory.baselines import MAML, PrototypicalNetworks
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures.omniglot_table import lacks as lacks
from pinfactory.meta.tasks import Omniglot

TITLE = "Omniglot with 5 and 20 classes"
ABOUT = """
Prototypical Networks (trained on 60 classes, one shot) and MAML (trained on 5 or 20 classes, one
inner step, as published) with four strided convolutional blocks, on tasks of the split that
publications use. This compares our networks and baselines with published numbers. With the quick
settings Prototypical Networks learn alone, for a tenth of their steps. The paper's own tasks have
two classes.
"""


@dataclass(frozen=True)
class Learner:
    """A network, its training tasks, and the classes and shots of its tests."""

    make: Callable[..., Any]
    ways: int
    queries: int
    steps: int
    tests: tuple[tuple[int, int], ...]


_SHARED: dict[str, Any] = {"strided": True, "learning_rate": 2e-3}
_MAML: dict[str, Any] = {**_SHARED, "inner_rate": 0.4, "inner_steps": 1, "transductive": True}
# Tasks in a step are such that all learn from about as many images in each.
LEARNERS = {
    "ProtoNets": Learner(
        partial(PrototypicalNetworks, 4, batch_size=1, **_SHARED),
        60, 5, 2500, ((5, 1), (5, 5), (20, 1), (20, 5)),
    ),
    "MAML, 5 classes": Learner(
        partial(MAML, 4, batch_size=8, test_steps=3, **_MAML), 5, 3, 4500, ((5, 1), (5, 5))
    ),
    "MAML, 20 classes": Learner(
        partial(MAML, 4, batch_size=4, test_steps=5, **_MAML), 20, 1, 9000, ((20, 1), (20, 5))
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Settings(Presets):
    """Learners, the share of their steps that they are given, and test tasks."""

    seeds: int = 1
    learners: tuple[str, ...] = tuple(LEARNERS)
    share: float = 1.0
    n_tasks: int = 1000
    split: str = "test"

    QUICK: ClassVar[Mapping[str, Any]] = {"learners": ("ProtoNets",), "share": 0.1, "n_tasks": 200}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every training."""
    own = without(settings, "learners", "seeds")
    return {
        f"{name}, seed {seed}": partial(_fit, own, name, seed)
        for name in settings.learners
        for seed in range(settings.seeds)
    }


def _fit(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    chosen = LEARNERS[name]
    steps = max(1, round(settings.share * chosen.steps))
    learner = chosen.make(max_iter=steps, random_state=seed)
    learner.fit(Omniglot(chosen.ways, 1, "vinyals", queries=chosen.queries))
    scores = {}
    for ways, shots in chosen.tests:
        tests = Omniglot(ways, shots, "vinyals", queries=5)
        score = learner.evaluate(tests, settings.n_tasks, split=settings.split)
        scores[f"{ways} classes, K = {shots}"] = (score.mean, score.standard_error)
    return {"learner": name, "scores": scores}


def measures(results: Results) -> list[Measure]:
    """Return accuracies, with the standard error over tasks where there is one seed."""
    rows = []
    for name in dict.fromkeys(piece["learner"] for piece in results.values()):
        mine = [piece["scores"] for piece in results.values() if piece["learner"] == name]
        for test in mine[0]:
            label = f"accuracy, {test}, {name}"
            if len(mine) == 1:
                rows.append(Measure(label, *mine[0][test]))
            else:
                rows.append(Measure.over(label, [scores[test][0] for scores in mine]))
    return rows
