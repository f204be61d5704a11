"""Whether the information in answers foretells how much worse they are on new samples."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from sklearn.datasets import make_moons

from pinfactory import SpecialistClassifier
from pinfactory.core.generalisation import committee_gap
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.experiments.style import GREY, PALETTE, new_figure, tidy
from pinfactory.experiments.synthetic_data import COMMITTEE
from pinfactory.paper import classifier as paper_classifier

from ._generalisation_bound import bound_of_weights

TITLE = "Information and the generalisation gap"
PLACE = "Section 2.2"
ABOUT = """
The paper suggests information in the space of answers as a regulariser, in analogy to the
PAC-Bayes bound for parameters. Here committees of four linear experts learn a few half moons, a
fifth of whose labels are wrong, at many prices of information. The gap is the mean probability of
the right label on the samples learned from, less that on new ones (with as many wrong labels). If
the suggestion is right, the gap rises with the bits that selector and experts process. The line is
the bound's formula with these bits in place of the divergence of parameters. Beside it stands the
bound itself: of committees whose weights are drawn from a Gaussian around those that were learned,
against one around zero. With `--method both` the paper's committees (`pinfactory.paper.classifier`)
learn the same at the same prices.
"""

# Of the stage whose price is not varied.
PRICES = {"beta_selector": 25.0, "beta_expert": 25.0}


@dataclass(frozen=True)
class Settings(Presets):
    """Samples, wrong labels and prices."""

    method: Method = "ours"
    seeds: int = 10
    n_samples: int = 80
    wrong: float = 0.2
    betas: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 25.0, 100.0)
    max_iter: int = 4000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 3}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for every β, with that of the other stage at 25."""
    own = without(settings, "method", "betas")
    ours, literal = (
        {
            f"{stage} {beta:g}": partial(_fit, own, make, {**PRICES, stage: beta})
            for stage in PRICES
            for beta in settings.betas
        }
        for make in (partial(_ours, own), paper_classifier)
    )
    return choose_pieces(settings.method, ours, literal)


def _ours(settings: Settings, n_experts: int, **more: Any) -> SpecialistClassifier:
    return SpecialistClassifier(
        n_experts,
        early_stopping=False,
        batch_size=32,
        learning_rate=3e-3,
        max_iter=settings.max_iter,
        **(COMMITTEE | more),
    )


def _draw_data(settings: Settings, n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_moons(n_samples, noise=0.15, random_state=seed)
    wrong = np.random.default_rng(seed).uniform(size=n_samples) < settings.wrong
    return X, np.where(wrong, 1 - y, y)


def _fit(
    settings: Settings, make: Callable[..., SpecialistClassifier], prices: Mapping[str, float]
) -> dict[str, Any]:
    found: dict[str, list[float]] = {"bits": [], "gap": [], "formula": []}
    found |= {"bound": [], "noisy gap": [], "divergence": []}
    new = _draw_data(settings, 10_000, 12345)
    for seed in range(settings.seeds):
        seen = _draw_data(settings, settings.n_samples, seed)
        committee = make(4, random_state=seed, **prices)
        with warnings.catch_warnings():
            # Prices at which a division of labour does not pay are part of the figure.
            warnings.simplefilter("ignore", UserWarning)
            committee.fit(*seen)
        right = [np.mean(committee.predict_proba(X)[np.arange(len(y)), y]) for X, y in (seen, new)]
        information = committee.information_
        found["bits"].append(information.selector + information.experts)
        found["gap"].append(float(right[0] - right[1]))
        found["formula"].append(float(committee_gap(information, settings.n_samples)))
        scaled = [(committee.scaler_.transform(X), y) for X, y in (seen, new)]
        for name, value in bound_of_weights(committee.state_.model, *scaled).items():
            found[name].append(value)
    return found


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return rank correlations with the gap for every seed, and how formula and bound do."""
    bits, gap, formula, bound, noisy_gap, divergence = (
        np.asarray([piece[name] for piece in results.values()])
        for name in ("bits", "gap", "formula", "bound", "noisy gap", "divergence")
    )

    def ranks(x: np.ndarray, y: np.ndarray) -> list[float]:
        return [float(spearmanr(*both).statistic) for both in zip(x.T, y.T, strict=True)]

    return [
        Measure.over("rank correlation of bits and gap", ranks(bits, gap)),
        Measure.over("rank correlation of the weights' divergence and gap", ranks(divergence, gap)),
        Measure.over("gap, most bits", gap[bits.mean(axis=1).argmax()]),
        Measure.over("gap, fewest bits", gap[bits.mean(axis=1).argmin()]),
        Measure.over("share of gaps below the formula", (gap <= formula).mean(axis=0)),
        Measure.over("bound of the weights", bound.mean(axis=0)),
        Measure.over("least bound of the weights", bound.min(axis=0)),
        Measure.over("gap with noise on the weights", noisy_gap.mean(axis=0)),
        Measure.over("share of these gaps below their bound", (noisy_gap <= bound).mean(axis=0)),
    ]


def draw(results: Results) -> Figure:
    """Draw the gap over the bits, and the formula."""
    figure = new_figure(6.4, 4.4)
    axes = figure.subplots()
    for suffix, pieces_of in by_method(results).items():
        for stage, colour in zip(PRICES, (PALETTE[2], PALETTE[5]), strict=True):
            found = [piece for name, piece in pieces_of.items() if name.startswith(stage)]
            bits, gap = (np.concatenate([p[name] for p in found]) for name in ("bits", "gap"))
            inside = "none" if suffix else colour
            label = f"{stage}{suffix}"
            axes.scatter(bits, gap, s=18, edgecolors=colour, facecolors=inside, label=label)
    bits, formula = (
        np.concatenate([piece[name] for piece in results.values()]) for name in ("bits", "formula")
    )
    order = np.argsort(bits)
    axes.plot(bits[order], formula[order], color=GREY, label="formula, 1 − δ = 0.95")
    axes.set(xlabel="I(X;M) + I(X;Y|M), bits", ylabel="gap")
    axes.legend(frameon=False)
    tidy(axes)
    return figure
