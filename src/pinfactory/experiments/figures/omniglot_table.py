"""Few-shot recognition of handwritten characters by 1 to 16 experts and by others' methods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory.baselines import ANIL, MAML, MatchingNetworks, PreTraining, PrototypicalNetworks
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.style import GREY, new_figure, tidy
from pinfactory.meta import MetaSpecialistClassifier
from pinfactory.meta.tasks import Omniglot

from ._omniglot import lacks as lacks

TITLE = "Omniglot, few-shot results"
PLACE = "Section 6.2, Table 2"
ABOUT = """
Binary tasks about characters that training never saw: K drawings of one character, K of any
others, and as many to be told apart. Accuracy on 300 test characters before any gradient step,
which shows what responsible experts know of their families of characters, and after ten; bits of
the selector. A committee answers by the mixture of its experts. All learners have one convolutional
block of 32 filters, whose normalisation has stored statistics, unless "four blocks" is said. The
same tasks are given to all, so that differences are paired. Committees learn tasks of one shot
first and then go on to more. Controls: a network without training ("untrained"), one expert with
the same number of training steps, and sixteen experts with tasks assigned by k-means. The paper's
words can be read in two ways: rotated drawings as classes of their own, or as more drawings of the
same class, which is much harder.
"""

PAPER_AFTER = {
    2: {1: 0.664, 5: 0.673, 10: 0.762},
    4: {1: 0.758, 5: 0.755, 10: 0.867},
    8: {1: 0.773, 5: 0.784, 10: 0.901},
    16: {1: 0.828, 5: 0.852, 10: 0.959},
}
PAPER_BITS = {
    2: {1: 0.99, 5: 0.93, 10: 0.95},
    4: {1: 1.96, 5: 1.95, 10: 1.90},
    8: {1: 2.5, 5: 2.7, 10: 2.8},
    16: {1: 3.2, 5: 3.3, 10: 3.1},
}
PAPER_BASELINES = {
    "pre-training": {1: 0.506, 5: 0.541, 10: 0.558},
    "MAML": {1: 0.812, 5: 0.880, 10: 0.892},
    "Matching Nets": {1: 0.527, 5: 0.553, 10: 0.609},
    "MAML, four blocks": {1: 0.952, 5: 0.990, 10: 0.992},
    "Matching Nets, four blocks": {1: 0.950, 5: 0.987, 10: 0.994},
}
BEFORE_TARGET = {1: 0.80, 5: 0.84, 10: 0.85}
AFTER_TARGET = {1: 0.92, 5: 0.96, 10: 0.98}
BITS_TARGET = 2.5

BASELINES: dict[str, Callable[..., Any]] = {
    "pre-training": PreTraining,
    "MAML": partial(MAML, inner_rate=0.01),
    "ANIL": partial(ANIL, inner_rate=0.003),
    "Matching Nets": partial(MatchingNetworks, learning_rate=0.01),
    "ProtoNets": PrototypicalNetworks,
    "MAML, four blocks": partial(MAML, 4, inner_rate=0.1, transductive=True, strided=True),
    "Matching Nets, four blocks": partial(MatchingNetworks, 4, strided=True),
    "ProtoNets, four blocks": partial(PrototypicalNetworks, 4, strided=True),
}
CONTROLS = ("untrained", "k-means")
# Tasks of a step with one shot.
BATCH = 16
# The learning rate and the tasks of a step with which committees go on from one shot to more.
FURTHER_RATE, FURTHER_BATCH = 2e-3, 8


@dataclass(frozen=True)
class Settings(Presets):
    """Tasks, learners, and how long they learn."""

    seeds: int = 3
    shots: tuple[int, ...] = (1, 5, 10)
    rotations: tuple[str, ...] = ("classes", "augmentation")
    n_experts: tuple[int, ...] = (1, 2, 4, 8, 16)
    controls: tuple[str, ...] = CONTROLS
    baselines: tuple[str, ...] = tuple(BASELINES)
    max_iter: int = 20_000
    further_iter: int = 2_400
    baseline_iter: int = 20_000
    n_tasks: int = 4000
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
    }


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every learner and kind of task."""
    own = without(settings, "rotations", "n_experts", "controls", "baselines")
    learners: dict[str, Callable[..., Any]] = {
        f"{n} experts" if n > 1 else "1 expert": _committee_of(n) for n in settings.n_experts
    }
    most = max(settings.n_experts)
    learners |= {"untrained": _committee_of(1)} if _has(settings, "untrained") else {}
    if _has(settings, "k-means"):
        learners["k-means"] = _committee_of(most, selector="kmeans")
    learners |= {name: BASELINES[name] for name in settings.baselines}
    return {
        f"{learner}, K={shots}, rotations as {rotations}": partial(
            _fit, own, learner, make, shots, rotations
        )
        for rotations in settings.rotations
        for shots in settings.shots
        for learner, make in learners.items()
    }


def _committee_of(n_experts: int, **settings: Any) -> Callable[..., MetaSpecialistClassifier]:
    return partial(MetaSpecialistClassifier, n_experts, batch_size=BATCH, **settings)


def _has(settings: Settings, control: str) -> bool:
    return control in settings.controls


def _fit(
    settings: Settings, name: str, make: Callable[..., Any], shots: int, rotations: str
) -> dict[str, Any]:
    """Train one learner for every seed and score it on the same test tasks."""
    tasks = Omniglot(shots=shots, rotations=rotations, folder=settings.folder)
    found: dict[str, Any] = {"learner": name, "shots": shots, "rotations": rotations}
    found |= {"scores": [], "before": [], "bits": [], "effective": [], "n_experts": None}
    for seed in range(settings.seeds):
        learner = _trained(settings, name, partial(make, random_state=seed), tasks)
        scores = learner.evaluate(tasks, settings.n_tasks).scores
        found["scores"].append(scores.round(4).tolist())
        if isinstance(learner, MetaSpecialistClassifier):
            found["n_experts"] = learner.n_experts
            before = learner.evaluate(tasks, settings.n_tasks, inner_steps=0).mean
            information = learner.information(tasks, settings.n_tasks)
            found["before"].append(before)
            found["bits"].append(information.selector)
            found["effective"].append(information.effective_experts)
    return found


def _trained(settings: Settings, name: str, make: Callable[..., Any], tasks: Omniglot) -> Any:
    """Train a learner; committees go from tasks of one shot, the quickest, to those of more."""
    if name in BASELINES:
        return make(max_iter=settings.baseline_iter).fit(tasks)
    if name == "untrained":
        return make(max_iter=1).fit(tasks)
    learner = make(max_iter=settings.max_iter)
    for shots in sorted({1, *settings.shots}):
        if shots <= tasks.shots:
            learner.fit(Omniglot(shots=shots, rotations=tasks.rotations, folder=settings.folder))
            learner.set_params(
                max_iter=settings.further_iter,
                batch_size=FURTHER_BATCH,
                learning_rate=FURTHER_RATE,
                warm_start=True,
            )
    return learner


def measures(results: Results) -> list[Measure]:
    """Return accuracies and bits beside the paper's, and the gain of experts on the same tasks."""
    rows = []
    for piece in results.values():
        shots, n_experts, label = piece["shots"], _committee(piece), _label(piece)
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
        if n_experts is not None and n_experts > 1:
            paper = PAPER_BITS.get(n_experts, {}).get(shots)
            target = BITS_TARGET if n_experts == 16 else None
            rows.append(_measure(f"I(M;X) in bits, {label}", piece["bits"], paper, target))
    return rows + _gains(results)


def _gains(results: Results) -> list[Measure]:
    """Compare the most experts with one, and with k-means, task by task."""
    rows = []
    for piece in results.values():
        if _committee(piece) is None or piece["n_experts"] == 1:
            continue
        for other in ("1 expert", "k-means"):
            found = [
                p for p in results.values() if p["learner"] == other and _kind(p) == _kind(piece)
            ]
            if not found or (other == "k-means" and piece["n_experts"] != found[0]["n_experts"]):
                continue
            gain = np.asarray(piece["scores"]) - np.asarray(found[0]["scores"])
            mean, error = gain.mean(), gain.mean(axis=0).std() / np.sqrt(gain.shape[1])
            rows.append(
                Measure(
                    f"gain over {other} in standard errors ({100 * mean:+.2f} ± "
                    f"{100 * error:.2f} points), {_label(piece)}",
                    float(mean / error) if error > 0 else 0.0,
                    target=2.0 if piece["n_experts"] == 16 else None,
                )
            )
    return rows


def _measure(name: str, values: list[float], paper: float | None, target: float | None) -> Measure:
    return Measure.over(name, values, paper=paper, target=target)


def _committee(piece: Any) -> int | None:
    """Return the number of experts of a committee that chooses them itself."""
    return piece["n_experts"] if "expert" in piece["learner"] else None


def _kind(piece: Any) -> tuple[Any, ...]:
    return piece["shots"], piece["rotations"]


def _label(piece: Any) -> str:
    return f"{piece['learner']}, K={piece['shots']}, rotations as {piece['rotations']}"


def draw(results: Results) -> Figure:
    """Draw accuracy and bits against the number of experts, and others' methods beside them."""
    readings = list(dict.fromkeys(piece["rotations"] for piece in results.values()))
    figure = new_figure(17.0, 4.8 * len(readings))
    grid = figure.subplots(len(readings), 4, squeeze=False, width_ratios=[1, 1, 1, 1.5])
    for row, reading in zip(grid, readings, strict=True):
        found = [piece for piece in results.values() if piece["rotations"] == reading]
        _draw_lines(row[0], found, "before", "before any gradient step")
        _draw_lines(row[1], found, "after", "after ten gradient steps")
        _draw_lines(row[2], found, "bits", "I(M;X) in bits")
        _draw_others(row[3], found)
        row[0].set_ylabel(f"accuracy, rotations as {reading}")
    return figure


COLOURS = {1: "#d1495b", 5: "#edae49", 10: "#30638e"}


def _values(piece: Any, name: str) -> np.ndarray:
    if name == "after":
        return np.asarray([np.mean(scores) for scores in piece["scores"]])
    return np.asarray(piece[name])


def _draw_lines(axes: Axes, found: list[Any], name: str, title: str) -> None:
    paper = {"after": PAPER_AFTER, "bits": PAPER_BITS}.get(name, {})
    committees = [piece for piece in found if _committee(piece) is not None]
    for shots in dict.fromkeys(piece["shots"] for piece in committees):
        line = sorted(
            (piece for piece in committees if piece["shots"] == shots),
            key=lambda piece: piece["n_experts"],
        )
        sizes = [piece["n_experts"] for piece in line]
        means = [_values(piece, name).mean() for piece in line]
        spreads = [_values(piece, name).std() for piece in line]
        colour = COLOURS.get(shots, GREY)
        axes.errorbar(sizes, means, spreads, color=colour, marker="o", label=f"K = {shots}")
        theirs = [(n, paper[n][shots]) for n in sizes if shots in paper.get(n, {})]
        if theirs:
            axes.plot(*zip(*theirs, strict=True), color=colour, ls=":", lw=1.2, marker="x")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({piece["n_experts"] for piece in committees}))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
    axes.set_xlabel("experts" + (" (crosses: paper)" if paper else ""))
    axes.set_title(title, fontsize=11)
    if name == "before":
        axes.legend(frameon=False, fontsize=9)
    tidy(axes)


def _draw_others(axes: Axes, found: list[Any]) -> None:
    """Draw others' methods and controls, with the largest committee on top."""
    largest = max((p["n_experts"] for p in found if _committee(p) is not None), default=None)
    shown = [piece for piece in found if _committee(piece) in (None, 1, largest)]
    names = list(dict.fromkeys(piece["learner"] for piece in shown))[::-1]
    for piece in shown:
        place = names.index(piece["learner"])
        values = _values(piece, "after")
        colour = COLOURS.get(piece["shots"], GREY)
        axes.errorbar(values.mean(), place, xerr=values.std(), color=colour, marker="o")
        theirs = PAPER_BASELINES.get(piece["learner"], {}).get(piece["shots"])
        if theirs is not None:
            axes.plot(theirs, place, marker="x", color=colour)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_title("after adaptation (crosses: paper)", fontsize=11)
    axes.set_xlabel("accuracy")
    tidy(axes)
