"""How fast, and how good: convolutions, training, and accuracy on Omniglot tasks, on one core.

Run as `PINFACTORY_OMNIGLOT=folder python benchmarks/bench_omniglot.py COMMAND`. Commands:

convolution
    Gradients of a convolution in two forms.
training
    Training tasks per second.
accuracy RESULTS LEARNER SEED [ROTATIONS [MOST_SHOTS]]
    Train a learner (a number of experts, a control, or one of others' methods: "MAML", "Matching
    Nets", "pre-training", "MAML, four blocks", "Matching Nets, four blocks") and score it.
    Controls: "k-means", sixteen experts with fixed tasks; "untrained"; "longer", "16 longer" and
    "k-means longer", one expert and sixteen with four times the steps. Results are added to the
    folder RESULTS at once: a line of `results.jsonl`, and the scores of all tasks. What is there is
    not measured again.
tune RESULTS BASELINE RATE
    Score a baseline with an inner rate, or a learning rate, on validation classes at K = 1.
vinyals RESULTS LEARNER STEPS [SPLIT]
    Train "ProtoNets", "MAML" (tasks of 5 classes) or "MAML 20" (of 20) with four blocks for so many
    steps and score it on tasks with more than two classes. A run that was stopped goes on from
    `RESULTS/LEARNER_vinyals_STEPS.pin`.
voices RESULTS LEARNER SHOTS
    Compare on validation classes who answers after ten steps: responsible experts, all alike, or
    one alone, with what they knew beforehand added or not.
gains RESULTS [OTHER]
    Compare learners with another, task by task; with one expert unless another is named.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import jax
import jax.numpy as jnp
import numpy as np

N_IMAGES, REPEATS = 640, 15


def best(run: Callable[[], Any]) -> float:
    """Return the shortest of some times, in milliseconds."""
    run()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def convolution() -> None:
    """Compare gradients of 32 filters with stride 2: one set, and one for each of 16 tasks."""
    from pinfactory.vision import Convolution

    images = np.random.default_rng(0).random((16, N_IMAGES // 16, 28, 28, 1), np.float32)
    ours = Convolution.start(1, 32, key=jax.random.key(0), stride=2)
    x, flat = jnp.asarray(images), jnp.asarray(images.reshape(-1, 28, 28, 1))

    def by_lax(weight: jax.Array, x: jax.Array) -> jax.Array:
        out = jax.lax.conv_general_dilated(
            x,
            weight.reshape(3, 3, 1, 32),
            (2, 2),
            ((1, 1), (1, 1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return jnp.sum(jax.nn.relu(out) ** 2)

    def by_patches(weight: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.sum(jax.nn.relu(Convolution(weight, ours.bias, 3, 2)(x)) ** 2)

    sixteen = jnp.stack([ours.weight] * 16)
    for name, loss in (("lax.conv", by_lax), ("product of patches", by_patches)):
        one, many = jax.jit(jax.grad(loss)), jax.jit(jax.vmap(jax.grad(loss)))
        times = (
            best(lambda one=one: one(ours.weight, flat).block_until_ready()),
            best(lambda many=many: many(sixteen, x).block_until_ready()),
        )
        print(f"{name:20s} one set {times[0]:6.1f} ms, 16 sets {times[1]:6.1f} ms", flush=True)


def training() -> None:
    """Print training tasks per second of committees and of a MAML with the same block."""
    from pinfactory.baselines import MAML
    from pinfactory.meta import MetaSpecialistClassifier
    from pinfactory.meta.tasks import Omniglot

    for shots in (1, 5, 10):
        tasks = Omniglot(shots=shots)
        short: dict[str, Any] = {"max_iter": 400, "batch_size": 16, "random_state": 0}
        learners: dict[str, Any] = {
            f"{m:2d} experts": MetaSpecialistClassifier(m, **short) for m in (1, 16)
        }
        learners["MAML, 5 inner steps"] = MAML(inner_rate=0.003, **short)
        for name, learner in learners.items():
            learner.fit(tasks)
            # The first chunk compiles.
            seconds = min(progress.seconds for progress in learner.history_[1:]) / 100
            print(f"K = {shots:2d}, {name:20s} {16 / seconds:8.0f} tasks/s", flush=True)


# Training steps, tasks in a step and test tasks for K = 1, 5, 10. Experts go on from K to the next;
# a task with one shot takes a tenth of the time of one with ten.
STEPS = {1: 5000, 5: 500, 10: 600}
BATCH = {1: 16, 5: 8, 10: 8}
# Steps of others' methods. Those of MAML take about as long as the steps of '16 longer'.
BASELINE_STEPS = {
    "MAML": {1: 6000, 5: 600, 10: 700},
    "Matching Nets": {1: 6000, 5: 600, 10: 700},
    "pre-training": {1: 1000, 5: 300, 10: 300},
    "MAML, four blocks": {1: 1500, 5: 150, 10: 150},
    "Matching Nets, four blocks": {1: 3000, 5: 300, 10: 300},
}
TUNING_STEPS = 600
TASKS = {1: 16_000, 5: 6_000, 10: 4_000}
TASKS_BEFORE = 2_000
# The learning rate with which experts go on.
FURTHER_RATE = 2e-3


def accuracy(
    folder: str, name: str, seed: str, rotations: str = "classes", most: str = "10"
) -> None:
    """Train a learner on tasks of 1, 5 and 10 shots and score it on tasks of unseen classes."""
    from pinfactory.meta.tasks import Omniglot

    Path(folder).mkdir(parents=True, exist_ok=True)
    learner = None
    for shots in (shots for shots in STEPS if shots <= int(most)):
        label = f"{name.replace(' ', '-')}_{rotations}_K{shots}_{seed}"
        tasks = Omniglot(shots=shots, rotations=rotations)
        model = Path(folder, f"{label}.pin")
        began = time.perf_counter()
        learner = _learner(name, shots, int(seed), learner, model)
        if not model.exists():
            learner.fit(tasks)
            learner.save(model)
        if Path(folder, f"{label}.npz").exists():
            continue
        found = {"learner": name, "rotations": rotations, "shots": shots, "seed": int(seed)}
        found["steps"], found["seconds"] = learner.max_iter, round(time.perf_counter() - began)
        after = learner.evaluate(tasks, TASKS[shots])
        found |= {"after": after.mean, "error": after.standard_error, "tasks": TASKS[shots]}
        scores = {"after": after.scores}
        if hasattr(learner, "information"):
            before = learner.evaluate(tasks, TASKS_BEFORE, inner_steps=0)
            found["before"], scores["before"] = before.mean, before.scores
            bits = learner.information(tasks, 1000)
            found["bits"], found["effective"] = bits.selector, bits.effective_experts
        np.savez_compressed(Path(folder, f"{label}.npz"), **scores)
        with Path(folder, "results.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


def _learner(name: str, shots: int, seed: int, former: Any, saved: Path) -> Any:
    """Return the saved learner, or a new one that goes on from the one for fewer shots."""
    from pinfactory.experiments.figures.omniglot_table import BASELINES
    from pinfactory.meta import MetaSpecialistClassifier
    from pinfactory.persistence import load

    if saved.exists():
        return load(saved)
    if name in BASELINES:
        settings = {"max_iter": BASELINE_STEPS[name][shots]}
        if name != "pre-training":
            settings["batch_size"] = BATCH[shots]
        learner = former or BASELINES[name](random_state=seed)
        return learner.set_params(warm_start=former is not None, **settings)
    steps = 1 if name == "untrained" else STEPS[shots] * (4 if "longer" in name else 1)
    if former is not None and name != "untrained":
        return former.set_params(
            max_iter=steps,
            batch_size=BATCH[shots],
            learning_rate=FURTHER_RATE,
            warm_start=True,
        )
    controls: dict[str, dict[str, Any]] = {
        "k-means": {"n_experts": 16, "selector": "kmeans"},
        "untrained": {"n_experts": 1},
        "longer": {"n_experts": 1},
        "16 longer": {"n_experts": 16},
        "k-means longer": {"n_experts": 16, "selector": "kmeans"},
    }
    kind = controls[name] if name in controls else {"n_experts": int(name)}
    settings = {"max_iter": steps, "batch_size": BATCH[shots], "random_state": seed}
    return MetaSpecialistClassifier(**settings | kind)


def tune(folder: str, name: str, rate: str) -> None:
    """Score a baseline on validation classes; of the rates the best is to be used."""
    from pinfactory.experiments.figures.omniglot_table import BASELINES
    from pinfactory.meta.tasks import Omniglot

    learner = BASELINES[name](max_iter=TUNING_STEPS, random_state=0)
    which = "inner_rate" if hasattr(learner, "inner_rate") else "learning_rate"
    tasks = Omniglot()
    score = (
        learner.set_params(**{which: float(rate)})
        .fit(tasks)
        .evaluate(tasks, 4000, split="validation")
    )
    found = {"learner": name, which: float(rate), "validation": score.mean}
    Path(folder).mkdir(parents=True, exist_ok=True)
    with Path(folder, "tuning.jsonl").open("a") as file:
        file.write(json.dumps(found) + "\n")
    print(found, flush=True)


# Classes and drawings of each in the test tasks, and how many there are.
VINYALS_TESTS = {
    "ProtoNets": ((5, 1), (5, 5), (20, 1), (20, 5)),
    "MAML": ((5, 1), (5, 5)),
    "MAML 20": ((20, 1), (20, 5)),
}
# Classes in a training task of MAML, queries of each, tasks in a step (160 images in either), and
# steps on a new task, as published.
MAML_TRAINING = {"MAML": (5, 3, 8, 3), "MAML 20": (20, 1, 4, 5)}
VINYALS_TASKS = 1000


def vinyals(folder: str, name: str, steps: str, split: str = "test") -> None:
    """Train four blocks on tasks with many classes and score them on unseen characters."""
    from pinfactory.baselines import MAML, PrototypicalNetworks
    from pinfactory.meta.tasks import Omniglot

    Path(folder).mkdir(parents=True, exist_ok=True)
    shared: dict[str, Any] = {"strided": True, "max_iter": int(steps), "random_state": 0}
    learner: Any
    if name == "ProtoNets":
        learner = PrototypicalNetworks(4, batch_size=1, learning_rate=2e-3, **shared)
        tasks = Omniglot(60, 1, "vinyals", queries=5)
    else:
        n_ways, n_queries, batch_size, test_steps = MAML_TRAINING[name]
        learner = MAML(
            4,
            batch_size=batch_size,
            learning_rate=2e-3,
            inner_rate=0.4,
            inner_steps=1,
            test_steps=test_steps,
            transductive=True,
            **shared,
        )
        tasks = Omniglot(n_ways, 1, "vinyals", queries=n_queries)
    learner.fit(tasks, checkpoint=Path(folder, f"{name.replace(' ', '-')}_vinyals_{steps}.pin"))
    results = Path(folder, "vinyals.jsonl")
    lines = results.read_text().splitlines() if results.exists() else []
    for ways, shots in VINYALS_TESTS[name]:
        found: dict[str, Any] = {"learner": name, "steps": int(steps), "ways": ways, "shots": shots}
        if any(found.items() <= json.loads(line).items() and split in line for line in lines):
            continue
        tests = Omniglot(ways, shots, "vinyals", queries=5)
        score = learner.evaluate(tests, VINYALS_TASKS, split=split)
        found |= {split: score.mean, "error": score.standard_error, "tasks": VINYALS_TASKS}
        with results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(found, flush=True)


def voices(folder: str, name: str, shots: str) -> None:
    """Print by how much answers of other mixtures differ from that of responsible experts."""
    import equinox as eqx

    from pinfactory.meta import TaskInput, TaskSource
    from pinfactory.meta.tasks import Omniglot
    from pinfactory.persistence import load

    learner = load(Path(folder, f"{name.replace(' ', '-')}_classes_K{shots}_0.pin"))
    hierarchy = learner.hierarchy()
    tasks, random = Omniglot(shots=int(shots)), np.random.default_rng(0)

    @eqx.filter_jit
    def right(hierarchy: Any, source: TaskSource, recipes: Any) -> dict[str, jax.Array]:
        batch = source.batch(recipes)
        inputs = TaskInput(batch.support, batch.query.x)
        share = jax.vmap(hierarchy.select)(inputs).probs
        alike = jnp.full_like(share, 1.0 / share.shape[1])
        before, after = (a.log_probs for a in jax.vmap(hierarchy.answers)(inputs))

        def score(share: jax.Array, logits: jax.Array) -> jax.Array:
            probs = jnp.einsum("nm,nmqc->nqc", share, jax.nn.softmax(logits))
            return 100 * jnp.mean(jnp.argmax(probs, axis=-1) == batch.query.y, axis=1)

        alone = [score(jnp.zeros_like(share).at[:, m].set(1.0), after) for m in range(len(alike.T))]
        return {
            "responsible": score(share, after),
            "all alike": score(alike, after),
            "each alone, mean": jnp.mean(jnp.stack(alone), axis=0),
            "with a quarter of the initial logits": score(share, after + 0.25 * before),
            "with half of the initial logits": score(share, after + 0.5 * before),
        }

    parts = [
        right(hierarchy, TaskSource(tasks), tasks.draw(random, 50, "validation"))
        for _ in range(4000 // 50 if shots == "1" else 1500 // 50)
    ]
    found = {who: np.concatenate([np.asarray(part[who]) for part in parts]) for who in parts[0]}
    print(f"{name}, K = {shots}, responsible: {found['responsible'].mean():.2f} %")
    for who, score in found.items():
        if who != "responsible":
            _print_gain(who, score - found["responsible"])


def gains(folder: str, other: str = "1") -> None:
    """Print by how much learners differ from another of the same seed on the same tasks."""
    found: dict[str, list[np.ndarray]] = {}
    for path in sorted(Path(folder).glob("*.npz")):
        name, rotations, shots, seed = path.stem.split("_")
        known = Path(folder, f"{other.replace(' ', '-')}_{rotations}_{shots}_{seed}.npz")
        if path == known or not known.exists():
            continue
        ours, theirs = np.load(path), np.load(known)
        for when in sorted(set(ours) & set(theirs)):
            gain = 100 * (ours[when] - theirs[when])
            found.setdefault(f"{when} {name}_{rotations}_{shots}", []).append(gain)
            _print_gain(f"{when} {path.stem}", gain)
    # Tasks are the same with every seed.
    for label, several in found.items():
        if len(several) > 1:
            _print_gain(f"{label}, mean of {len(several)} seeds", np.mean(several, axis=0))


def _print_gain(label: str, gain: np.ndarray) -> None:
    error = gain.std() / np.sqrt(len(gain))
    print(f"{label:50s} {gain.mean():+6.2f} ± {error:.2f} points", flush=True)


COMMANDS: dict[str, Callable[..., None]] = {
    "convolution": convolution,
    "training": training,
    "accuracy": accuracy,
    "gains": gains,
    "tune": tune,
    "vinyals": vinyals,
    "voices": voices,
}

if __name__ == "__main__":
    command, *rest = sys.argv[1:] or ["convolution"]
    COMMANDS[command](*rest)
