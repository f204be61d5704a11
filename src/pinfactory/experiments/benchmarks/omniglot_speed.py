"""Convolutions in two forms, and training tasks per second on Omniglot, on one core."""

import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.baselines import MAML
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures.omniglot_table import BATCH
from pinfactory.experiments.figures.omniglot_table import lacks as lacks
from pinfactory.meta import MetaSpecialistClassifier
from pinfactory.meta.tasks import Omniglot
from pinfactory.vision import Convolution

TITLE = "Speed of few-shot learning from images"
ABOUT = """
Gradients of a convolution of 640 images with 32 filters and stride 2: JAX's own operation compared
with the product of patches that the library uses, with one set of filters and with one for each of
16 tasks. Training tasks per second of committees and of MAML with the same block and five inner
steps, without compilation. All on one core, alternating.
"""
LOG_SCALE = ("tasks per second",)
ALONE = True
_FORMS, _LEARNERS = ("lax", "patches"), ("1 expert", "16 experts", "MAML")


@dataclass(frozen=True)
class Settings(Presets):
    """Turns, and the shots of tasks."""

    seeds: int = 15
    shots: tuple[int, ...] = (1, 5, 10)
    chunks: int = 3

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 7, "shots": (1,), "chunks": 2}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for the convolutions, and one for each number of shots."""
    own = without(settings, "shots")
    training = {f"K = {k}": partial(_training, own, k) for k in settings.shots}
    return {"convolution": partial(_convolution, own), **training}


def _convolution(settings: Settings) -> dict[str, Any]:
    """Return milliseconds of every turn, by form and sets of filters."""
    images = np.random.default_rng(0).random((16, 40, 28, 28, 1), np.float32)
    filters = Convolution.start(1, 32, key=jax.random.key(0), stride=2)

    def by_lax(weight: jax.Array, x: jax.Array) -> jax.Array:
        strides, room, names = (2, 2), ((1, 1), (1, 1)), ("NHWC", "HWIO", "NHWC")
        kernel = weight.reshape(3, 3, 1, 32)
        out = jax.lax.conv_general_dilated(x, kernel, strides, room, dimension_numbers=names)
        return jnp.sum(jax.nn.relu(out) ** 2)

    def by_patches(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.relu(Convolution(weight, filters.bias, 3, 2)(x)) ** 2)

    sets = {
        "1 set": (filters.weight, jnp.asarray(images.reshape(-1, 28, 28, 1))),
        "16 sets": (jnp.stack([filters.weight] * 16), jnp.asarray(images)),
    }
    programs = {
        (form, name): jax.jit(jax.grad(loss) if name == "1 set" else jax.vmap(jax.grad(loss)))
        for form, loss in zip(_FORMS, (by_lax, by_patches), strict=True)
        for name in sets
    }
    found: dict[str, dict[str, list[float]]] = {n: {f: [] for f in _FORMS} for n in sets}
    for turn in range(-1, settings.seeds):
        for (form, name), program in programs.items():
            began = time.process_time()
            program(*sets[name]).block_until_ready()
            if turn >= 0:  # the first one compiles
                found[name][form].append(1e3 * (time.process_time() - began))
    return {"convolution": found}


def _training(settings: Settings, shots: int) -> dict[str, Any]:
    """Return tasks per second of every chunk but the first, which compiles."""
    tasks = Omniglot(shots=shots)
    short: dict[str, Any] = {"max_iter": 100 * (1 + settings.chunks), "batch_size": BATCH}
    learners = (
        MetaSpecialistClassifier(1, random_state=0, **short),
        MetaSpecialistClassifier(16, random_state=0, **short),
        MAML(inner_rate=0.003, random_state=0, **short),
    )
    rates = {}
    for name, learner in zip(_LEARNERS, learners, strict=True):
        learner.fit(tasks)
        rates[name] = [
            (now.step - before.step) * BATCH / now.seconds
            for before, now in itertools.pairwise(learner.history_)
        ]
    return {"shots": shots, "rates": rates}


def measures(results: Results) -> list[Measure]:
    """Return how many times faster patches are, milliseconds, and tasks per second."""
    ratios, rows = [], []
    for piece in results.values():
        for name, times in piece.get("convolution", {}).items():
            ratio = np.divide(times["lax"], times["patches"])
            ratios.append(Measure.over(f"times faster than lax, {name}", ratio, unit="×"))
            for form, values in times.items():
                rows.append(Measure.over(f"gradient, {form}, {name}", values, unit="ms"))
        for name, rates in piece.get("rates", {}).items():
            label = f"tasks per second, K = {piece['shots']}, {name}"
            rows.append(Measure.over(label, rates, unit="1/s"))
    return ratios + rows
