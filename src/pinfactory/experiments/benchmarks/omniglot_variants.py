"""Characters: how codes of a task's samples are pooled, and how small the experts are."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures.omniglot_table import BATCH, N_STEPS, PAPER_METHODS
from pinfactory.experiments.figures.omniglot_table import lacks as lacks
from pinfactory.experiments.style import counted
from pinfactory.meta import MetaSpecialistClassifier, TaskScores
from pinfactory.meta.tasks import Omniglot

TITLE = "Pooling of samples, and size of experts"
ABOUT = """
Two sentences of the paper about characters. "We found that max pooling yields the best results":
the selector reads the maximum, the mean or the minimum of the codes of a task's positive samples,
of which there are five. "This reduced representational capacity drives specialization": experts
with few filters and with many, alone and together, on tasks of one shot. Accuracy on the same test
tasks before any gradient step and after ten; ± of a difference is its standard error, clustered by
character. Beside them MAML and Matching Networks of one block, with the settings of the paper's
appendix, after as many steps.
"""

POOLS = ("max", "mean", "min")
# Accuracies before the first gradient step and after the last.
MOMENTS = {"before": 0, "after 10 steps": N_STEPS}


@dataclass(frozen=True)
class Settings(Presets):
    """Committees, how long they learn, and the shots of tasks whose samples are pooled."""

    seeds: int = 3
    n_experts: int = 4
    filters: tuple[int, ...] = (4, 32)
    pooled_shots: int = 5
    max_iter: int = 400
    n_tasks: int = 500

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "max_iter": 100,
        "n_tasks": 250,
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for each learner and seed."""
    own = without(settings, "seeds", "filters")
    learners: dict[str, dict[str, Any]] = {
        f"{pool} of samples": {"embedding_pool": pool, "shots": settings.pooled_shots}
        for pool in POOLS
    }
    for filters in settings.filters:
        for n in (1, settings.n_experts):
            name = f"{counted(n, 'expert')}, {filters} filters"
            learners[name] = {"filters": filters, "n_experts": n, "shots": 1}
    found = {name: partial(_fit, own, name, how) for name, how in learners.items()}
    found |= {name: partial(_baseline, own, name) for name in PAPER_METHODS}
    return {
        f"{name}, seed {seed}": partial(piece, seed)
        for name, piece in found.items()
        for seed in range(settings.seeds)
    }


def _fit(settings: Settings, name: str, how: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Train one learner, and score it on the same test tasks as all others."""
    changes: dict[str, Any] = {"n_experts": settings.n_experts, **how}
    tasks = Omniglot(shots=changes.pop("shots"))
    learner = MetaSpecialistClassifier(
        max_iter=settings.max_iter, batch_size=BATCH, random_state=seed, **changes
    ).fit(tasks)
    found: dict[str, Any] = {"learner": name, "bits": learner.information_.selector}
    for moment, steps in MOMENTS.items():
        scores = learner.evaluate(tasks, settings.n_tasks, inner_steps=steps)
        found[moment] = scores.scores.round(4).tolist()
        found["groups"] = np.asarray(scores.groups).tolist()
    return found


def _baseline(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    """Train a method that the paper compares with, and score it after its adaptation."""
    tasks = Omniglot()
    learner = PAPER_METHODS[name](max_iter=settings.max_iter, random_state=seed).fit(tasks)
    return {"baseline": name, "score": learner.evaluate(tasks, settings.n_tasks).mean}


def measures(results: Results) -> list[Measure]:
    """Return accuracies and bits of all learners, and differences on the same tasks."""
    runs: dict[str, list[Any]] = {}
    baselines: dict[str, list[float]] = {}
    for piece in results.values():
        if "baseline" in piece:
            baselines.setdefault(piece["baseline"], []).append(piece["score"])
        else:
            runs.setdefault(piece["learner"], []).append(piece)
    rows = [
        Measure.over(f"accuracy, {name} as in the appendix", scores)
        for name, scores in baselines.items()
    ]
    for name, found in runs.items():
        for moment in MOMENTS:
            means = [float(np.mean(run[moment])) for run in found]
            rows.append(Measure.over(f"accuracy {moment}, {name}", means))
        if not name.startswith("1 expert"):
            rows.append(Measure.over(f"I(M;X) in bits, {name}", [run["bits"] for run in found]))
    for moment in MOMENTS:
        for other in POOLS[1:]:
            lead = f"lead of max over {other} {moment} in points"
            rows.append(_lead(lead, moment, runs["max of samples"], runs[f"{other} of samples"]))
        for name, several in runs.items():
            size = name.partition(", ")[2]
            if size and not name.startswith("1 expert"):
                gain = f"gain over 1 expert {moment} in points, {size}"
                rows.append(_lead(gain, moment, several, runs[f"1 expert, {size}"]))
    return rows


def _lead(name: str, moment: str, ours: list[Any], theirs: list[Any]) -> Measure:
    """Return the paired difference in points with its standard error, clustered by character."""
    one, other = (np.asarray([run[moment] for run in runs]) for runs in (ours, theirs))
    gain = TaskScores(100.0 * (one - other).mean(axis=0), np.asarray(ours[0]["groups"]))
    return Measure(name, gain.mean, gain.standard_error, n=len(one))
