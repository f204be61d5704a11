"""The rate–utility explorer: from precomputed committees to a piece of HTML."""

import base64
import json
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from contourpy import contour_generator
from matplotlib.colors import to_hex
from matplotlib.image import imsave

from pinfactory.experiments.experiment import Results
from pinfactory.experiments.png import reduce_colours

from ._pictures import partition_image

_PAGE = Path(__file__).parent / "explorer.html"
_STEPS = 255


def pack(probabilities: np.ndarray) -> str:
    """Return probabilities as text, a byte each."""
    return base64.b64encode(np.rint(_STEPS * probabilities).astype(np.uint8).tobytes()).decode()


def unpack(text: str, *shape: int) -> np.ndarray:
    """Return packed probabilities."""
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(shape) / _STEPS


def explorer(results: Results) -> str:
    """Return HTML with sliders for both stages and the number of experts; it needs nothing else."""
    pieces = list(results.values())
    axes = pieces[0]["axes"]
    X, y = (np.asarray(pieces[0]["samples"][name]) for name in ("X", "y"))
    experts = list(dict.fromkeys(piece["n_experts"] for piece in pieces))
    modes: dict[str, Any] = {}
    for piece in pieces:
        mode = modes.setdefault(piece["kind"], {"experts": {}})
        n_second = len(piece["second"])
        cells = [_cell(cell, piece["n_experts"], axes) for cell in piece["cells"]]
        mode["experts"][piece["n_experts"]] = {
            "first": piece["first"],
            "second": piece["second"],
            "cells": [cells[i : i + n_second] for i in range(0, len(cells), n_second)],
        }
    data = {
        "extent": [axes[0][0], axes[0][-1], axes[1][0], axes[1][-1]],
        "samples": [X[y == label].round(3).T.tolist() for label in (0, 1)],
        "experts": experts,
        "colours": {n: [to_hex(colour) for colour in partition_image(np.eye(n))] for n in experts},
        "modes": modes,
    }
    # "</" would end the script that holds the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    return _PAGE.read_text(encoding="utf-8").replace("__DATA__", text)


def _cell(cell: dict[str, Any], n_experts: int, axes: Any) -> dict[str, Any]:
    """Return what the explorer shows of one committee."""
    shown = cell["shown"]
    shape = (len(axes[1]), len(axes[0]))
    proba = unpack(shown["proba"], *shape)
    responsibilities = unpack(shown["responsibilities"], *shape, n_experts)
    numbers = {
        "accuracy": "accuracy",
        "drawn": "sampled",
        "selector": "selector_bits",
        "expert": "expert_bits",
        "overall": "overall_bits",
    }
    return {
        **{name: round(float(shown[column]), 4) for name, column in numbers.items()},
        "share": np.round(shown["share"], 3).tolist(),
        "image": _png(partition_image(responsibilities)),
        "boundary": _boundary(axes, proba),
    }


def _png(image: np.ndarray) -> str:
    stream = BytesIO()
    imsave(stream, (255 * image[::-1]).astype(np.uint8), format="png")
    return base64.b64encode(reduce_colours(stream.getvalue())).decode()


def _boundary(axes: Any, proba: np.ndarray) -> list[list[float | None]]:
    """Return where both classes are equally probable, as lines with None between them."""
    x: list[float | None] = []
    y: list[float | None] = []
    for line in contour_generator(axes[0], axes[1], proba).lines(0.5):
        points = np.asarray(line).round(3)
        x += [*points[:, 0].tolist(), None]
        y += [*points[:, 1].tolist(), None]
    return [x, y]
