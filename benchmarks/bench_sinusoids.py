"""Sine curves from ten points: 1 to 16 experts beside MAML, all in one run, several seeds.

All see the same number of training tasks (64 in each step), and are judged by the mean squared
error on the same 4,000 new curves after ten gradient steps, or by their own rule. MAML has one
inner step of a fixed size, the best of three on a seed of its own; so has "one step" of one expert
with learned sizes, the fairest form of it.
Run as `python benchmarks/bench_sinusoids.py [--seeds 3] [--steps 3000] [--shots 10]`.
"""

import argparse

import numpy as np

from pinfactory.experiments._sinusoid_pictures import MAML
from pinfactory.experiments.sinusoids import STEPS_AFTER, Settings, learner
from pinfactory.meta.tasks import Sinusoids

TASKS = 4000
TUNING_SEED = 100


def error(tasks: Sinusoids, rule: str, n_experts: int, **changes) -> tuple[float, float]:
    """Return the mean squared error on new curves, and I(M;X) in bits."""
    model = learner(Settings(), rule, n_experts, **changes).fit(tasks)
    after = STEPS_AFTER if rule == "gradient" else None
    return model.evaluate(tasks, TASKS, inner_steps=after).mean, model.information_.selector


def show(name: str, errors: list[tuple[float, float]]) -> None:
    """Print mean and spread over seeds."""
    (mse, bits), (spread, _) = np.mean(errors, axis=0), np.std(errors, axis=0)
    print(f"  {name:44} {mse:8.4f} ± {spread:.4f}   {bits:5.2f} bits", flush=True)


def main() -> None:
    """Train everybody and print errors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--shots", type=int, default=10)
    asked = parser.parse_args()
    tasks = Sinusoids(shots=asked.shots)
    print(f"K = {asked.shots}, {asked.steps} steps of 64 tasks, {asked.seeds} seeds")
    for name, hidden in MAML.items():
        fixed = {"expert_hidden": hidden, "inner_steps": 1, "max_iter": asked.steps}
        plain = fixed | {"learn_rates": False}
        tuned = {
            rate: error(tasks, "gradient", 1, random_state=TUNING_SEED, inner_rate=rate, **plain)[0]
            for rate in (0.03, 0.1, 0.3)
        }
        rate = min(tuned, key=lambda r: tuned[r])
        for label, settings in (
            (f"{name}, inner rate {rate}", plain | {"inner_rate": rate}),
            (f"{name}, learned inner rates", fixed),
        ):
            seeds = range(asked.seeds)
            show(label, [error(tasks, "gradient", 1, random_state=s, **settings) for s in seeds])
    for rule in ("last_layer", "none", "gradient"):
        for n_experts in (1, 2, 4, 8, 16):
            settings = {"max_iter": asked.steps}
            seeds = range(asked.seeds)
            errors = [error(tasks, rule, n_experts, random_state=s, **settings) for s in seeds]
            show(f"{rule}, {n_experts} experts", errors)


if __name__ == "__main__":
    main()
