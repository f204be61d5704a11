"""An experiment of a few seconds in ten pieces, which `tools/kill_resume.py` kills and resumes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pinfactory.experiments import Measure

TITLE, ABOUT = "Mixtures of random tables", "Log-likelihood of small mixtures."


@dataclass(frozen=True)
class Settings:
    """How many tables."""

    seeds: int = 10

    @classmethod
    def quick(cls, **changes: Any) -> "Settings":
        """Return the only settings there are."""
        return cls(**changes)


def _piece(seed: int) -> float:
    from pinfactory import SpecialistMixture

    x = np.random.default_rng(seed).normal(size=(200, 2))
    return float(SpecialistMixture(3, random_state=seed).fit(x).score(x))


def pieces(settings: Settings) -> Mapping[str, Callable[[], float]]:
    """Return a fit for each table."""
    return {f"table {seed}": lambda seed=seed: _piece(seed) for seed in range(settings.seeds)}


def draw(results: Mapping[str, float]) -> Figure:
    """Draw the scores."""
    figure = Figure()
    figure.subplots().plot(list(results.values()))
    return figure


def measures(results: Mapping[str, float]) -> list[Measure]:
    """Return the score of each table."""
    return [Measure(name, score) for name, score in results.items()]
