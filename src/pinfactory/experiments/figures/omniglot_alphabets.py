"""Which alphabets go to which expert."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure, SubFigure

from pinfactory import paper
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, choose_pieces, compare_methods
from pinfactory.experiments.style import new_figure
from pinfactory.meta import MetaSpecialistClassifier
from pinfactory.meta.tasks import Omniglot

from ._omniglot import lacks as lacks

TITLE = "Alphabets and experts"
PLACE = "Section 7.1, Figure 12"
ABOUT = """
After training on binary tasks, drawings of every character are given to the selector as positive
samples of a task. Training uses no alphabets; characters of one alphabet go to the same experts if
they look alike. Alphabets are sorted by how certain the selector is of their characters. "Bits that
an expert tells of the alphabet" is the mutual information between alphabet and expert; the same
with alphabets shuffled among characters shows what is due to chance. With `--method both` the
paper's Algorithm 1 is also in the table.
"""
# Characters shown of each of the most certain and uncertain alphabets.
N_ALPHABETS, N_CHARACTERS = 3, 5
# Tasks of a step.
BATCH = 16


@dataclass(frozen=True)
class Settings(Presets):
    """The committee and its tasks."""

    method: Method = "ours"
    seeds: int = 3
    n_experts: int = 16
    shots: int = 1
    max_iter: int = 5_000
    folder: str | None = None

    # One seed and few steps.
    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "max_iter": 800}


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for every seed."""
    own = without(settings, "method", "seeds")
    ours, literal = (
        {f"seed {seed}": partial(_assign, own, seed, make) for seed in range(settings.seeds)}
        for make in (MetaSpecialistClassifier, paper.few_shot)
    )
    return choose_pieces(settings.method, ours, literal)


def _assign(
    settings: Settings, seed: int, make: Callable[..., MetaSpecialistClassifier]
) -> dict[str, Any]:
    """Train a committee, and show every character to its selector."""
    tasks = Omniglot(shots=settings.shots, folder=settings.folder)
    learner = make(
        settings.n_experts, max_iter=settings.max_iter, batch_size=BATCH, random_state=seed
    ).fit(tasks)
    images = np.asarray(tasks.images).reshape(len(tasks.alphabets), -1, 28, 28)
    shown = images[:, : tasks.shots].astype(np.float32) / 255.0
    # The selector sees positives alone.
    shares = learner.responsibilities(shown, np.ones(shown.shape[:2], np.int32))
    names, codes = np.unique(tasks.alphabets, return_inverse=True)
    doubt = _entropy(shares)
    uncertain = np.asarray([doubt[codes == code].mean() for code in range(len(names))])
    order = np.argsort(uncertain)
    picked = {}
    for kind, chosen in (("certain", order[:N_ALPHABETS]), ("uncertain", order[-N_ALPHABETS:])):
        picked[kind] = [
            {
                "alphabet": str(names[code]),
                "characters": images[codes == code][:N_CHARACTERS, 0].tolist(),
                "shares": shares[codes == code][:N_CHARACTERS].round(3).tolist(),
            }
            for code in chosen
        ]
    random = np.random.default_rng(seed)
    return {
        "alphabets": [str(names[code]) for code in order],
        "uncertainty": uncertain[order].round(4).tolist(),
        "shares": [shares[codes == code].mean(axis=0).round(4).tolist() for code in order],
        "told": _told(shares, codes),
        "told_by_chance": _told(shares, random.permutation(codes)),
        "bits": float(_entropy(shares.mean(axis=0)) - doubt.mean()),
        **picked,
    }


def _entropy(probs: np.ndarray) -> np.ndarray:
    """Return entropies in bits."""
    return np.asarray(-np.sum(probs * np.log2(np.maximum(probs, 1e-12)), axis=-1))


def _told(shares: np.ndarray, codes: np.ndarray) -> float:
    """Return the mutual information between alphabet and expert, in bits."""
    rows = np.stack([shares[codes == code].mean(axis=0) for code in np.unique(codes)])
    weights = np.bincount(codes) / len(codes)
    return float(_entropy(weights @ rows) - weights @ _entropy(rows))


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return what an expert tells of the alphabet, and what it would by chance."""
    names = {
        "told": "bits that an expert tells of the alphabet",
        "told_by_chance": "the same with shuffled alphabets",
        "bits": "bits that a character tells of the expert",
    }
    return [
        Measure.over(name, [piece[key] for piece in results.values()])
        for key, name in names.items()
    ]


def draw(results: Results) -> Figure:
    """Draw the map of alphabets and experts, and some characters, for the first seed.

    Of our method if it was run, else of the paper's.
    """
    piece = next(iter(results.values()))
    figure = new_figure(13.0, 10.0)
    halves: Any = figure.subfigures(1, 2, width_ratios=[1.0, 0.9])
    left, right = halves
    axes = left.subplots()
    shares = np.asarray(piece["shares"])
    # Experts by where their characters are, so that the map reads from corner to corner.
    columns = np.argsort(np.argmax(shares, axis=0))
    picture = axes.imshow(shares[:, columns], cmap="magma_r", aspect="auto", vmin=0.0)
    axes.set_yticks(range(len(shares)), piece["alphabets"], fontsize=7)
    axes.set_xticks([])
    axes.set_xlabel("experts; alphabets from the most certain down")
    axes.set_title("Who gets which alphabet", loc="left", fontweight="bold", fontsize=13)
    left.colorbar(picture, ax=axes, shrink=0.5, label="mean p(m) of the characters")
    above, below = right.subfigures(2, 1)
    _draw_characters(above, piece["certain"], "Alphabets that the selector is sure of", columns)
    _draw_characters(below, piece["uncertain"], "Alphabets that it spreads", columns)
    return figure


def _draw_characters(figure: SubFigure, found: list[Any], title: str, columns: np.ndarray) -> None:
    figure.suptitle(title, fontweight="bold", fontsize=13)
    grid = figure.subplots(2 * len(found), N_CHARACTERS, height_ratios=[2, 1] * len(found))
    for i, alphabet in enumerate(found):
        for j in range(N_CHARACTERS):
            image, bars = grid[2 * i, j], grid[2 * i + 1, j]
            for axes in (image, bars):
                axes.set(xticks=[], yticks=[])
                axes.spines[:].set_visible(False)
            image.imshow(alphabet["characters"][j], cmap="Greys")
            share = np.asarray(alphabet["shares"][j])[columns]
            bars.bar(range(len(share)), share, color="#30638e", width=0.9)
            bars.set(ylim=(0.0, 1.0), xlim=(-0.5, len(share) - 0.5))
            bars.axhline(0.0, color="#999999", lw=0.5)
        grid[2 * i, 0].set_ylabel(alphabet["alphabet"].replace("_", "\n"), fontsize=8)
