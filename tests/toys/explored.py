"""A rate–utility plane of made-up numbers, for its explorer."""

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from pinfactory.experiments.figures._explorer import explorer, pack

TITLE, ABOUT, PLACE = "Toy", "About.", "Section 1"


@dataclass(frozen=True)
class Settings:
    seeds: int = 1

    @classmethod
    def quick(cls, **changes):
        return cls(**changes)


def made_up_piece(kind, n_experts, n_first):
    """Return a piece of the rate–utility plane in which every cell has numbers of its own."""
    axis, cells = np.linspace(-1.5, 1.5, 16), []
    radius = np.hypot(*np.meshgrid(axis, axis)).ravel()
    for i in range(n_first):
        for j in range(3):
            share = np.linspace(1, 1 + i + j, n_experts)
            share = share / share.sum()
            shown = {
                "accuracy": 0.5 + 0.1 * i + 0.01 * j + 0.001 * n_experts,
                "sampled": 0.5 + 0.05 * i,
                "selector_bits": 0.3 * i + (kind == "budgets") * 0.05,
                "expert_bits": 0.2 * j,
                "overall_bits": 0.1 * (i + j),
                "share": share,
                "proba": pack(1 / (1 + np.exp(8 * (radius - 0.4 - 0.2 * j)))),
                "responsibilities": pack(np.tile(share, (len(radius), 1))),
            }
            cells.append({"shown": shown})
    return {
        "kind": kind,
        "n_experts": n_experts,
        "first": [0.5 * (i + 1) for i in range(n_first)],
        "second": [1.5, 5.5, 20.5],
        "cells": cells,
        "axes": [axis.tolist(), axis.tolist()],
        "samples": {"X": [[0.1, 0.2], [1.0, 1.0]], "y": [0, 1]},
    }


def pieces(settings):
    return {
        f"{kind}, {n}": lambda kind=kind, n=n: made_up_piece(kind, n, 3 if n > 1 else 1)
        for kind in ("prices", "budgets")
        for n in (1, 4)
    }


def draw(results):
    return Figure()


def measures(results):
    return []


def explore(results):
    return explorer(results)
