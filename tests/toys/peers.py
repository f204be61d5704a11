"""Pieces that depend on a peer and a number of steps each; those of a lambda on all settings."""

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from pinfactory.experiments import Measure

TITLE, ABOUT = "Peers", "One piece for each peer and seed."


@dataclass(frozen=True)
class Settings:
    seeds: int = 2
    peers: tuple[int, ...] = (1, 2)
    steps: int = 10
    others: int = 0

    @classmethod
    def quick(cls, **changes):
        return cls(**changes)

    paper = quick


def pieces(settings):
    found = {
        f"peer {peer}, seed {seed}": partial(_compute, peer, seed, steps=settings.steps)
        for peer in settings.peers
        for seed in range(settings.seeds)
    }
    return found | {f"other {i}": lambda i=i: _compute(0, i, 0) for i in range(settings.others)}


def _compute(peer, seed, steps):
    with (Path(os.environ["TOY_FOLDER"]) / "computed").open("a") as log:
        log.write(f"{peer}{seed}\n")
    return {"product": peer * seed * steps}


def draw(results):
    return Figure()


def measures(results):
    return [Measure("sum, of products", sum(piece["product"] for piece in results.values()))]
