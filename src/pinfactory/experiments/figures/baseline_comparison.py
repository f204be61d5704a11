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
from pinfactory.experiments.style import counted, new_figure
from pinfactory.experiments.synthetic_data import COMMITTEE, classification, mesh, plane

from ._pictures import draw_probability, draw_samples

TITLE = "Circles: linear experts beside trees, forests and boosting"
PLACE = "Section 4.1, Figure 3"
ABOUT = """
The same two rings for decision trees of depth 1, 2 and 4, random forests and AdaBoost with 1, 2
and 4 trees of depth 2 (scikit-learn's own, at their defaults), and our committees with 1, 2 and 4
linear experts. The paper shows the partitions and no numbers. Trees cut along the axes, so that a
round boundary costs them many leaves; the committee draws it with few lines, laid by the selector.
A fair reader keeps in mind that the selector, two layers of ten units, is itself a network that
could learn the circles, and that deeper trees or larger forests would learn them too.
"""


@dataclass(frozen=True)
class Settings(Presets):
    """Sizes of the models, and how ours learns."""

    seeds: int = 10
    n_samples: int = 1024
    sizes: tuple[int, ...] = (1, 2, 4)
    tree_depth: int = 2
    max_iter: int = 10_000
    n_init: int = 4
    resolution: int = 120

    # Fewer seeds and restarts.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 4, "max_iter": 5000, "n_init": 2}


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


OURS = "linear experts"
_Size = Callable[[int], str]
_MODELS: dict[str, tuple[Callable[[Settings, int, int], Any], _Size]] = {
    "decision tree": (_tree, "depth {}".format),
    "random forest": (_forest, partial(counted, noun="tree")),
    "AdaBoost": (_boosting, partial(counted, noun="tree")),
    OURS: (_committee, partial(counted, noun="expert")),
}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every model and size."""
    own = without(settings, "sizes")
    return {
        f"{model}, {label(size)}": partial(_fit, own, model, size)
        for model, (_, label) in _MODELS.items()
        for size in settings.sizes
    }


def _fit(settings: Settings, model: str, size: int) -> dict[str, Any]:
    """Fit a model for every seed; keep the answers of the first for the picture."""
    make, label = _MODELS[model]
    accuracy, picture = [], {}
    for seed in range(settings.seeds):
        split = classification("circles", settings.n_samples, seed)
        fitted = make(settings, size, seed).fit(split.X, split.y)
        accuracy.append(fitted.score(split.X_test, split.y_test))
        if seed == 0:
            axes = plane(split.X, settings.resolution)
            proba = fitted.predict_proba(mesh(axes))[:, 1].round(4)
            picture = {"X": split.X_test, "y": split.y_test, "axes": axes, "proba": proba}
    return {"model": model, "size": label(size), "accuracy": accuracy, **picture}


def measures(results: Results) -> list[Measure]:
    """Return held-out accuracies, and by how much our largest leads the best of the others."""
    rows = []
    for name, piece in results.items():
        target = 0.98 if name.startswith(OURS) and piece["size"].startswith("4") else None
        rows.append(Measure.over(f"accuracy, {name}", piece["accuracy"], target=target))
    ours = max(row.ours for row in rows if OURS in row.name)
    others = max(row.ours for row in rows if OURS not in row.name)
    rows.append(
        Measure("lead of the best committee over the best other", ours - others, target=0.0)
    )
    return rows


def draw(results: Results) -> Figure:
    """Draw what every model decides: a column for each kind, a row for each size."""
    models = list(dict.fromkeys(piece["model"] for piece in results.values()))
    n_sizes = len(results) // len(models)
    figure = new_figure(3.3 * len(models), 3.45 * n_sizes)
    panels = figure.subplots(n_sizes, len(models), squeeze=False)
    for column, model in enumerate(models):
        mine = [piece for piece in results.values() if piece["model"] == model]
        for row, piece in enumerate(mine):
            axes = panels[row, column]
            draw_probability(axes, piece)
            draw_samples(axes, piece, size=5.0)
            axes.set_box_aspect(1.0)
            axes.set_title(f"{piece['size']}: {np.mean(piece['accuracy']):.3f}", fontsize=11)
        top = panels[0, column]
        title = f"{model}\n{top.get_title()}"
        top.set_title(title, fontsize=12, fontweight="bold" if model == OURS else "normal")
    return figure
