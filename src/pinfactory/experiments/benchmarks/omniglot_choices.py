"""Choices made on validation characters: rates of others' methods, and who answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures.omniglot_table import BASELINES, BATCH
from pinfactory.experiments.figures.omniglot_table import lacks as lacks
from pinfactory.meta import MetaSpecialistClassifier, TaskInput, TaskSource
from pinfactory.meta.tasks import Omniglot

TITLE = "Settings chosen on validation characters"
ABOUT = """
Binary one-shot tasks with characters that occur neither in training nor in tests. Learning rates:
other methods with several inner rates, or with several learning rates if they have no inner loop.
The best is used in the table. Answers: the accuracy of a committee if the responsible experts
answer after ten gradient steps, as by default, minus that of other ways to answer.
"""

RATES = {
    "MAML": (0.003, 0.01, 0.03),
    "ANIL": (0.001, 0.003, 0.01),
    "Matching Nets": (0.003, 0.01, 0.03),
}


@dataclass(frozen=True)
class Settings(Presets):
    """Methods with their rates, the committee, and how long all learn."""

    seeds: int = 1
    methods: tuple[str, ...] = tuple(RATES)
    steps: int = 600
    n_experts: int = 16
    committee_steps: int = 20_000
    n_tasks: int = 4000

    QUICK: ClassVar[Mapping[str, Any]] = {
        "methods": ("Matching Nets",),
        "steps": 150,
        "n_experts": 4,
        "committee_steps": 400,
        "n_tasks": 500,
    }


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for each rate and seed, and one for each committee."""
    own = without(settings, "methods", "seeds")
    seeds = range(settings.seeds)
    rates = {
        f"{name}, rate {rate}, seed {seed}": partial(_rate, own, name, rate, seed)
        for name in settings.methods
        for rate in RATES[name]
        for seed in seeds
    }
    return rates | {f"answers, seed {seed}": partial(_answers, own, seed) for seed in seeds}


def _rate(settings: Settings, name: str, rate: float, seed: int) -> dict[str, Any]:
    learner = BASELINES[name](max_iter=settings.steps, random_state=seed)
    which = "inner_rate" if hasattr(learner, "inner_rate") else "learning_rate"
    tasks = Omniglot()
    score = learner.set_params(**{which: rate}).fit(tasks)
    mean = score.evaluate(tasks, settings.n_tasks, split="validation").mean
    return {"label": f"{name}, {which} {rate}", "score": mean}


def _answers(settings: Settings, seed: int) -> dict[str, Any]:
    """Return the accuracies, task by task, of several ways to answer."""
    tasks, random = Omniglot(), np.random.default_rng(seed)
    learner = MetaSpecialistClassifier(
        settings.n_experts,
        max_iter=settings.committee_steps,
        batch_size=BATCH,
        random_state=seed,
    ).fit(tasks)
    source, parts = TaskSource(tasks), []
    for _ in range(settings.n_tasks // 50):
        recipes = tasks.draw(random, 50, "validation")
        parts.append(_ways_to_answer(learner.hierarchy(), source, recipes))
    means = {way: float(np.mean([part[way] for part in parts])) for way in parts[0]}
    return {"answers": means}


@eqx.filter_jit
def _ways_to_answer(hierarchy: Any, source: TaskSource, recipes: Any) -> dict[str, jax.Array]:
    batch = source.batch(recipes)
    inputs = TaskInput(batch.support, batch.query.x)
    share = jax.vmap(hierarchy.select)(inputs).probs
    before, after = (a.log_probs for a in jax.vmap(hierarchy.answers)(inputs))

    def score(share: jax.Array, logits: jax.Array) -> jax.Array:
        probs = jnp.einsum("nm,nmqc->nqc", share, jax.nn.softmax(logits))
        return jnp.mean(jnp.argmax(probs, axis=-1) == batch.query.y)

    alike = jnp.full_like(share, 1.0 / share.shape[1])
    alone = [score(jnp.zeros_like(share).at[:, m].set(1.0), after) for m in range(share.shape[1])]
    return {
        "responsible experts": score(share, after),
        "all alike": score(alike, after),
        "each alone": jnp.mean(jnp.stack(alone)),
        "with half of the first answer": score(share, after + 0.5 * before),
    }


def measures(results: Results) -> list[Measure]:
    """Return the validation accuracy of all rates and of all ways to answer."""
    found: dict[str, list[float]] = {}
    for piece in results.values():
        if "label" in piece:
            found.setdefault(f"accuracy, {piece['label']}", []).append(piece["score"])
        for way, score in piece.get("answers", {}).items():
            found.setdefault(f"accuracy of a committee, {way}", []).append(score)
    return [Measure.over(name, values) for name, values in found.items()]
