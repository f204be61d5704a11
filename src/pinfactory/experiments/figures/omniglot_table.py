"""Few-shot recognition of handwritten characters by 1 to 16 experts and by others' methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from pinfactory import paper
from pinfactory.baselines import ANIL, MAML, MatchingNetworks, PreTraining, PrototypicalNetworks
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.experiments.style import counted
from pinfactory.meta import MetaSpecialistClassifier, TaskScores
from pinfactory.meta.tasks import Omniglot

from ._omniglot import lacks as lacks
from ._omniglot_pictures import (
    PAPER_AFTER,
    PAPER_BASELINES,
    PAPER_BITS,
    committee_size,
    draw_table,
)

TITLE = "Omniglot, few-shot results"
PLACE = "Section 6.2, Table 2"
ABOUT = """
Binary tasks about characters that training never saw: K drawings of one character, K of any
others, and as many to be told apart. Accuracy on 300 test characters before any gradient step,
which shows what responsible experts know of their families of characters, and after ten; bits of
the selector. A committee answers by the mixture of its experts. All learners have one convolutional
block of 32 filters, whose normalisation has stored statistics. The same tasks are given to all, so
that differences are paired. Committees learn tasks of one shot
first and then go on to more. Controls: a network without training ("untrained"), one expert with
the same number of training steps, and sixteen experts with tasks assigned by k-means. Rotated
drawings are classes of their own; the paper's words could also mean more drawings of the same
class, which is much harder (`Omniglot(rotations="augmentation")`). Accuracy over the steps in
between is a curve of its own for K = 1. With `--method both` Algorithm 1 to the letter learns from
as many tasks; the expert that its selector finds most probable answers, and its ten steps begin at
that expert.
"""

BEFORE_TARGET = {1: 0.80, 5: 0.84, 10: 0.85}
AFTER_TARGET = {1: 0.92, 5: 0.96, 10: 0.98}
BITS_TARGET = 2.5

BASELINES: dict[str, Callable[..., Any]] = {
    "pre-training": PreTraining,
    "MAML": partial(MAML, inner_rate=0.01),
    "ANIL": partial(ANIL, inner_rate=0.003),
    "Matching Nets": partial(MatchingNetworks, learning_rate=0.01),
    "ProtoNets": PrototypicalNetworks,
}
FOUR_BLOCKS: dict[str, Callable[..., Any]] = {
    "MAML, four blocks": partial(MAML, 4, inner_rate=0.1, transductive=True, strided=True),
    "Matching Nets, four blocks": partial(MatchingNetworks, 4, strided=True),
    "ProtoNets, four blocks": partial(PrototypicalNetworks, 4, strided=True),
}
# Those of them that the appendix describes.
PAPER_METHODS: dict[str, Callable[..., Any]] = {
    "MAML": paper.maml,
    "Matching Nets": paper.matching_networks,
}
CONTROLS = ("untrained", "k-means")
# Gradient steps in a new task.
N_STEPS = 10
# Steps through a whole network take long: the paper's method gets so many times fewer test tasks.
FEWER_TASKS = 5
# What a piece has of each seed.
OVER_SEEDS = ("scores", "before", "bits", "effective", "curve")
# Tasks of a step with one shot.
BATCH = 16
# The learning rate and the tasks of a step with which committees go on from one shot to more.
FURTHER_RATE, FURTHER_BATCH = 2e-3, 8


@dataclass(frozen=True)
class Settings(Presets):
    """Tasks, learners, how long they learn, and the gradient steps of the curve, from 0 on."""

    method: Method = "ours"
    seeds: int = 3
    shots: tuple[int, ...] = (1, 5, 10)
    rotations: tuple[str, ...] = ("classes",)
    n_experts: tuple[int, ...] = (1, 2, 4, 8, 16)
    controls: tuple[str, ...] = CONTROLS
    baselines: tuple[str, ...] = ("Matching Nets", "ProtoNets")
    max_iter: int = 3_000
    further_iter: int = 400
    baseline_iter: int = 3_000
    n_tasks: int = 1000
    curve: tuple[int, ...] = (0, 1, 2, 3, 5, 10)
    folder: str | None = None

    # One seed, one shot and few steps: shapes of the results, not their level.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "shots": (1,),
        "rotations": ("classes",),
        "n_experts": (1, 4, 16),
        "controls": (),
        "baselines": ("Matching Nets",),
        "max_iter": 600,
        "baseline_iter": 200,
        "n_tasks": 500,
        "curve": (0, 1, 3, 10),
    }


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every learner, reading of the rotations, and seed."""
    own = without(settings, "method", "seeds", "rotations", "n_experts", "controls", "baselines")
    ours, literal = (
        {
            f"{learner}, rotations as {rotations}, seed {seed}": partial(
                _fit, own, learner, make, rotations, seed
            )
            for rotations in settings.rotations
            for learner, make in learners.items()
            for seed in range(settings.seeds)
        }
        for learners in (_ours(settings), _literal(settings))
    )
    return choose_pieces(settings.method, ours, literal)


def _ours(settings: Settings) -> dict[str, Callable[..., Any]]:
    learners: dict[str, Callable[..., Any]] = {
        counted(n, "expert"): _committee_of(n) for n in settings.n_experts
    }
    most = max(settings.n_experts, default=1)
    learners |= {"untrained": _committee_of(1)} if _has(settings, "untrained") else {}
    if _has(settings, "k-means"):
        learners["k-means"] = _committee_of(most, selector="kmeans")
    return learners | {name: (BASELINES | FOUR_BLOCKS)[name] for name in settings.baselines}


def _literal(settings: Settings) -> dict[str, Callable[..., Any]]:
    learners: dict[str, Callable[..., Any]]
    learners = {counted(n, "expert"): partial(paper.few_shot, n) for n in settings.n_experts}
    return learners | {n: make for n, make in PAPER_METHODS.items() if n in settings.baselines}


def _committee_of(n_experts: int, **settings: Any) -> Callable[..., MetaSpecialistClassifier]:
    return partial(MetaSpecialistClassifier, n_experts, batch_size=BATCH, **settings)


def _has(settings: Settings, control: str) -> bool:
    return control in settings.controls


def _fit(
    settings: Settings, name: str, make: Callable[..., Any], rotations: str, seed: int
) -> list[dict[str, Any]]:
    """Train one learner, and score it on the same test tasks as all others, for every K."""
    learner, found = None, []
    for shots in sorted(settings.shots):
        tasks = Omniglot(shots=shots, rotations=rotations, folder=settings.folder)
        learner = _trained(settings, name, partial(make, random_state=seed), tasks, learner)
        row = {"learner": name, "shots": shots, "rotations": rotations, "n_experts": None}
        found.append(row | _scored(settings, learner, tasks))
    return found


def _scored(settings: Settings, learner: Any, tasks: Omniglot) -> dict[str, Any]:
    """Return accuracies of test tasks, which character each is about, and what a selector does."""
    evaluate = partial(learner.evaluate, tasks, settings.n_tasks)
    if isinstance(learner, paper.TaskClassifier):
        evaluate = partial(learner.evaluate, tasks, settings.n_tasks // FEWER_TASKS, routing="best")
    after = evaluate()
    found = {"scores": after.scores.round(4).tolist(), "groups": after.groups.tolist()}
    if isinstance(learner, MetaSpecialistClassifier):
        # Every number of steps is a program of its own: the whole curve for one shot alone.
        steps = settings.curve if tasks.shots == 1 else (0, N_STEPS)
        curve = [after.mean if n == N_STEPS else evaluate(inner_steps=n).mean for n in steps]
        information = learner.information(tasks, settings.n_tasks)
        found |= {
            "n_experts": learner.n_experts,
            "before": curve[0],
            "curve": curve,
            "curve_steps": steps,
            "bits": information.selector,
            "effective": information.effective_experts,
        }
    return found


def _trained(
    settings: Settings, name: str, make: Callable[..., Any], tasks: Omniglot, fewer: Any
) -> Any:
    """Train a learner; committees go on from the one with fewer shots, which learns quickest."""
    if name in BASELINES | FOUR_BLOCKS:
        return make(max_iter=settings.baseline_iter).fit(tasks)
    if name == "untrained":
        return make(max_iter=1).fit(tasks)
    if fewer is None or isinstance(fewer, paper.TaskClassifier):
        return make(max_iter=settings.max_iter).fit(tasks)
    further = {"max_iter": settings.further_iter, "batch_size": FURTHER_BATCH}
    return fewer.set_params(learning_rate=FURTHER_RATE, warm_start=True, **further).fit(tasks)


def _gathered(results: Results) -> dict[str, Any]:
    """Return one piece for every learner and kind of task, with lists over seeds."""
    found: dict[str, Any] = {}
    for suffix, pieces in by_method(results).items():
        for row in (row for rows in pieces.values() for row in rows):
            piece = found.setdefault(f"{_label(row)}{suffix}", {name: [] for name in OVER_SEEDS})
            for name, value in row.items():
                if name in OVER_SEEDS:
                    piece[name].append(value)
                else:
                    piece[name] = value
    return found


def measures(results: Results) -> list[Measure]:
    """Return accuracies and bits beside the paper's, and the gain of experts on the same tasks."""
    return _judged(_gathered(results))


@compare_methods
def _judged(results: Results) -> list[Measure]:
    rows = []
    for piece in results.values():
        shots, n_experts, label = piece["shots"], committee_size(piece), _label(piece)
        paper = PAPER_BASELINES.get(piece["learner"], {}).get(shots)
        if n_experts is not None:
            paper = PAPER_AFTER.get(n_experts, {}).get(shots)
        promised = n_experts == 16 and piece["rotations"] == "classes"
        after = [float(np.mean(scores)) for scores in piece["scores"]]
        target = AFTER_TARGET.get(shots) if promised else None
        rows.append(_measure(f"accuracy after 10 steps, {label}", after, paper, target))
        if piece["before"]:
            target = BEFORE_TARGET.get(shots) if promised else None
            rows.append(_measure(f"accuracy before, {label}", piece["before"], None, target))
        for n, accuracies in zip(
            piece.get("curve_steps", ()), np.transpose(piece["curve"]), strict=True
        ):
            if 0 < n < N_STEPS:
                name = f"accuracy after {counted(n, 'step')}, {label}"
                rows.append(_measure(name, list(accuracies), None, None))
        if n_experts is not None and n_experts > 1:
            paper = PAPER_BITS.get(n_experts, {}).get(shots)
            target = BITS_TARGET if n_experts == 16 else None
            rows.append(_measure(f"I(M;X) in bits, {label}", piece["bits"], paper, target))
    return rows + _gains(results)


def _gains(results: Results) -> list[Measure]:
    """Compare experts with one, and with k-means, task by task.

    The spread of a gain in points is its standard error, clustered by character: tasks about one
    character are hard or easy together, and seeds share the tasks.
    """
    rows = []
    for piece in results.values():
        if committee_size(piece) is None or piece["n_experts"] == 1:
            continue
        for other in ("1 expert", "k-means"):
            found = [
                p for p in results.values() if p["learner"] == other and _kind(p) == _kind(piece)
            ]
            if not found or (other == "k-means" and piece["n_experts"] != found[0]["n_experts"]):
                continue
            gain = np.asarray(piece["scores"]) - np.asarray(found[0]["scores"])
            paired = TaskScores(100.0 * gain.mean(axis=0), np.asarray(piece["groups"]))
            name = f"gain over {other} in points, {_label(piece)}"
            rows.append(Measure(name, paired.mean, paired.standard_error, n=len(gain)))
            target = 2.0 if piece["n_experts"] == 16 else None
            ratio = paired.mean / paired.standard_error if paired.standard_error > 0 else 0.0
            name = f"gain over {other} in standard errors, {_label(piece)}"
            rows.append(Measure(name, ratio, target=target))
    return rows


def _measure(name: str, values: list[float], paper: float | None, target: float | None) -> Measure:
    return Measure.over(name, values, paper=paper, target=target)


def _kind(piece: Any) -> tuple[Any, ...]:
    return piece["shots"], piece["rotations"]


def _label(piece: Any) -> str:
    return f"{piece['learner']}, K={piece['shots']}, rotations as {piece['rotations']}"


def draw(results: Results) -> Figure:
    """Draw accuracy and bits against the number of experts, and others' methods beside them."""
    return draw_table(_gathered(results))
