"""Meta-reinforcement learning with 1, 2, 4 and 8 experts, at equal numbers of steps."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.rl.meta import (
    MetaSpecialistAgent,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
)

TITLE = "More experts for the double pendulums"
ABOUT = """
Agents with 1, 2, 4 and 8 experts learn from the paper's double pendulums (T) for the same number of
environment steps. With the default settings experts are split after `0.8` of the training; with
`growth_fraction=1/3` they have more time after the split. All are tested on the same new tasks of T
and of T′, without training there. The gain from a doubling is between agents of the same seed.
"""
REQUIRES = ("gymnasium",)

SPLITS: dict[str, dict[str, Any]] = {
    "default settings": {},
    "split at a third": {"growth_fraction": 1 / 3},
}


@dataclass(frozen=True)
class Settings(Presets):
    """Numbers of experts, when they are split, how long agents learn, and tasks to judge them."""

    seeds: int = 3
    n_experts: tuple[int, ...] = (1, 2, 4, 8)
    splits: tuple[str, ...] = tuple(SPLITS)
    iterations: int = 300
    n_tasks: int = 64
    max_steps: int = 1000
    n_judged: int = 2048

    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 2,
        "splits": ("default settings",),
        "iterations": 100,
        "n_judged": 512,
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for each number of experts; its seeds share a compiled program."""
    own = without(settings, "n_experts", "splits")
    return {
        f"{n} experts, {split}": partial(_agents, own, split, n)
        for n in settings.n_experts
        # Up to two experts begin, and none is split.
        for split in (settings.splits if n > 2 else ["default settings"])
    }


def _agents(settings: Settings, split: str, n_experts: int) -> dict[str, list[float]]:
    ways = {"T": double_pendulum_tasks, "T′": double_pendulum_new_tasks}
    families = {where: make(settings.max_steps) for where, make in ways.items()}
    found: dict[str, list[float]] = {"experts in use": []}
    for seed in range(settings.seeds):
        agent = MetaSpecialistAgent(
            families["T"], n_experts, n_tasks=settings.n_tasks, seed=seed, **SPLITS[split]
        )
        agent.learn(settings.iterations)
        found["experts in use"].append(agent.effective_experts_)
        for where, family in families.items():
            judged = agent.evaluate(family, seed=0, n_tasks=settings.n_judged)
            found.setdefault(f"return on {where}", []).append(judged.deterministic.mean)
    return found


def measures(results: Results) -> list[Measure]:
    """Return what agents reach, and what every doubling of the experts brings."""
    found = [
        Measure.over(f"{quantity}, {name}", values)
        for name, piece in results.items()
        for quantity, values in piece.items()
    ]
    for split in SPLITS:
        ladder = [name for name in results if name.endswith(split) or name[:2] in ("1 ", "2 ")]
        found += [
            # On T two experts already have most of the best return: nothing is promised.
            Measure.over(
                f"rise of the {where} over half as many experts, {more}",
                rises,
                target=0.0 if where == "return on T′" else None,
            )
            for fewer, more in itertools.pairwise(ladder)
            for where in ("return on T", "return on T′")
            if more.endswith(split)
            for rises in [np.subtract(results[more][where], results[fewer][where])]
        ]
    return sorted(found, key=lambda measure: measure.name.partition(", ")[0])
