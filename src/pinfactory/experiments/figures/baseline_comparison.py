"""Circles, divided by trees, forests and boosting on one side and by a committee on the other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from sklearn.ensemble import AdaBoostClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier

from pinfactory import SpecialistClassifier
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import (
    Method,
    by_method,
    choose_pieces,
    compare_methods,
)
from pinfactory.experiments.style import counted, new_figure
from pinfactory.experiments.synthetic_data import COMMITTEE, classification, mesh, plane
from pinfactory.paper import classifier as paper_classifier

from ._pictures import draw_probability, draw_samples

TITLE = "Circles: linear experts compared with trees, forests and boosting"
PLACE = "Section 4.1, Figure 3"
ABOUT = """
Decision trees of depth 1, 2 and 4, random forests and AdaBoost with 1, 2 and 4 trees of depth 2
(scikit-learn's, with default settings), and our committees with 1, 2 and 4 linear experts learn the
two rings. The paper shows the partitions and no numbers. Trees cut along the axes, so a round
boundary needs many leaves. A committee needs a few lines, which the selector arranges. The
selector, two layers of ten units, is itself a network that could learn the circles, and deeper
trees or larger forests would learn them too; the figure of the classification tasks has such a
network among its controls. With `--method both` the paper's method has its own column.
"""


@dataclass(frozen=True)
class Settings(Presets):
    """Sizes of the models, and how ours learns; the paper's method has its own settings."""

    method: Method = "ours"
    seeds: int = 10
    n_samples: int = 1024
    sizes: tuple[int, ...] = (1, 2, 4)
    tree_depth: int = 2
    max_iter: int = 10_000
    n_init: int = 4
    resolution: int = 120

    # Fewer seeds and restarts.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3, "max_iter": 5000, "n_init": 2}


def _tree(settings: Settings, size: int, seed: int) -> Any:
    return DecisionTreeClassifier(max_depth=size, random_state=seed)


def _forest(settings: Settings, size: int, seed: int) -> Any:
    depth = settings.tree_depth
    return RandomForestClassifier(n_estimators=size, max_depth=depth, random_state=seed)


def _boosting(settings: Settings, size: int, seed: int) -> Any:
    tree = DecisionTreeClassifier(max_depth=settings.tree_depth)
    return AdaBoostClassifier(tree, n_estimators=size, random_state=seed)


def _committee(settings: Settings, size: int, seed: int) -> Any:
    return SpecialistClassifier(
        size,
        beta_selector=5.0,
        batch_size=32,
        learning_rate=3e-3,
        max_iter=settings.max_iter,
        n_init=settings.n_init,
        random_state=seed,
        **COMMITTEE,
    )


def _literal(settings: Settings, size: int, seed: int) -> Any:
    return paper_classifier(size, random_state=seed)


OURS = "linear experts"
_Make = Callable[[Settings, int, int], Any]
_MODELS: dict[str, tuple[_Make, Callable[[int], str]]] = {
    "decision tree": (_tree, "depth {}".format),
    "random forest": (_forest, partial(counted, noun="tree")),
    "AdaBoost": (_boosting, partial(counted, noun="tree")),
    OURS: (_committee, partial(counted, noun="expert")),
}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every model and size."""
    own = without(settings, "method", "sizes")
    ours, literal = (
        {
            f"{model}, {label(size)}": partial(_fit, own, model, size, make)
            for model, (make, label) in models.items()
            for size in settings.sizes
        }
        for models in (_MODELS, {OURS: (_literal, _MODELS[OURS][1])})
    )
    return choose_pieces(settings.method, ours, literal)


def _fit(settings: Settings, model: str, size: int, make: _Make) -> dict[str, Any]:
    """Fit a model for every seed; keep the answers of the first for the picture."""
    accuracy, picture = [], {}
    for seed in range(settings.seeds):
        split = classification("circles", settings.n_samples, seed)
        fitted = make(settings, size, seed).fit(split.X, split.y)
        accuracy.append(fitted.score(split.X_test, split.y_test))
        if seed == 0:
            axes = plane(split.X, settings.resolution)
            proba = fitted.predict_proba(mesh(axes))[:, 1].round(4)
            picture = {"X": split.X_test, "y": split.y_test, "axes": axes, "proba": proba}
    return {"model": model, "size": _MODELS[model][1](size), "accuracy": accuracy, **picture}


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return held-out accuracies, and by how much our largest leads the best of the others."""
    rows = []
    for name, piece in results.items():
        target = 0.98 if name.startswith(OURS) and piece["size"].startswith("4") else None
        rows.append(Measure.over(f"accuracy, {name}", piece["accuracy"], target=target))
    ours = max(row.ours for row in rows if OURS in row.name)
    others = [row.ours for row in rows if OURS not in row.name]
    if others:
        name = "lead of the best committee over the best other"
        rows.append(Measure(name, ours - max(others), target=0.0))
    return rows


def draw(results: Results) -> Figure:
    """Draw what every model decides: a column for each kind, a row for each size."""
    columns: dict[str, list[Any]] = {}
    for suffix, pieces_of in by_method(results).items():
        for piece in pieces_of.values():
            columns.setdefault(f"{piece['model']}{suffix}", []).append(piece)
    n_sizes = max(map(len, columns.values()))
    figure = new_figure(3.3 * len(columns), 3.45 * n_sizes)
    panels = figure.subplots(n_sizes, len(columns), squeeze=False)
    for column, (model, found) in zip(panels.T, columns.items(), strict=True):
        for axes, piece in zip(column, found, strict=True):
            draw_probability(axes, piece)
            draw_samples(axes, piece, size=5.0)
            axes.set_box_aspect(1.0)
            axes.set_title(f"{piece['size']}: {np.mean(piece['accuracy']):.3f}", fontsize=11)
        title = f"{model}\n{column[0].get_title()}"
        weight = "bold" if model.startswith(OURS) else "normal"
        column[0].set_title(title, fontsize=12, fontweight=weight)
    return figure
