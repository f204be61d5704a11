"""Meta-reinforcement learning on the double pendulums of the paper: numbers for the guide.

`python benchmarks/bench_meta_rl.py PART [--out FILE] [--seeds N]` with one of the parts

    speed       seconds for 64 tasks × 1,000 iterations, from some iterations of each size
    sign        I(sign; M) after five transitions, 2 experts, 40 iterations
    probes      return and I(sign; M) with each way to spend the first five steps
    experts     return on T and T′, before and after 100 updates, for 1, 2, 4, 8, 16 experts
    baselines   MAML, ProMP and GrBAL, before and after adaptation
    table       prints what is in the file

Runs on one core. Every result is written to the file as soon as it is there; what is in the file
is not run again. Seconds are those of the processor, which others on the machine disturb less.
"""

import os

os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false"
)

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pinfactory.baselines.rl_gradient import MAMLPolicy, ProMP
from pinfactory.baselines.rl_model import GrBAL
from pinfactory.rl.meta import (
    MetaSpecialistAgent,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
)
from pinfactory.rl.meta._information import groups, information_about

T, NEW = double_pendulum_tasks(), double_pendulum_new_tasks()
EXPERTS = (1, 2, 4, 8, 16)
PROBES = ("shake", "noise", "prior", "expert")
Row = dict[str, Any]
Job = tuple[str, Callable[[], Row]]


def trained(
    n_experts: int, seed: int, iterations: int, **settings: Any
) -> tuple[MetaSpecialistAgent, Row]:
    """Train an agent; agents of one capacity share a compiled program."""
    began = time.process_time()
    agent = MetaSpecialistAgent(T, n_experts, **{"capacity": 16, "seed": seed} | settings)
    agent.learn(iterations)
    seconds = time.process_time() - began
    responsibilities, tasks = agent.responsibilities(n_tasks=1024)
    return agent, {
        "n_experts": n_experts,
        "seed": seed,
        "steps": agent.num_timesteps,
        "seconds": seconds,
        "sign": information_about(groups(tasks["control_sign"]), responsibilities),
    }


def sign(seed: int) -> Row:
    """Measure what the choice of one of two experts tells about the sign of the motor."""
    return trained(2, seed, 40)[1]


def probes(kind: str, seed: int, iterations: int) -> Row:
    """Train and judge with one kind of probe."""
    agent, row = trained(2, seed, iterations, probe=kind)
    return {**row, "probe": kind, "T": agent.evaluate(T, seed=0).mean}


def experts(n_experts: int, seed: int, iterations: int) -> Row:
    """Judge on T and T′, and on T′ once more after 100 updates."""
    agent, row = trained(n_experts, seed, iterations)
    information = agent.information_
    row["selector_bits"], row["expert_bits"] = information.selector, information.experts
    row["effective_experts"] = information.effective_experts
    row["T"] = agent.evaluate(T, seed=0).mean
    row["T′"] = agent.evaluate(NEW, seed=0).mean
    row["T′ after"] = agent.evaluate(NEW, seed=0, updates=100).mean
    return row


def baselines(name: str, seed: int, iterations: int) -> Row:
    """Judge a baseline before and after it adapts to a task."""
    began = time.process_time()
    if name == "GrBAL":
        # Planning is slow: fewer steps than all others, as the table says.
        learner: Any = GrBAL(T, seed=seed).learn(min(iterations, 30))
        moments: dict[str, Row] = {"before": {"adapting": False}, "after": {"adapting": True}}
    else:
        learner = {"MAML": MAMLPolicy, "ProMP": ProMP}[name](T, seed=seed).learn(iterations)
        moments = {"before": {"steps": 0}, "after": {"steps": 1}}
    row: Row = {"name": name, "seed": seed, "steps": learner.num_timesteps}
    for place, family in (("T", T), ("T′", NEW)):
        for moment, how in moments.items():
            played = learner.evaluate(family, n_tasks=64, **how)
            row[f"{place} {moment}"] = float(played.mean())
    return {**row, "seconds": time.process_time() - began}


def speed(n_experts: int) -> Row:
    """Time twenty iterations after the first twenty, which compile."""
    agent = MetaSpecialistAgent(T, n_experts)
    began = time.process_time()
    agent.learn(20)
    warm = time.process_time()
    agent.learn(20)
    per_iteration = (time.process_time() - warm) / 20
    return {
        "n_experts": n_experts,
        "first": warm - began,
        "per_iteration": per_iteration,
        "thousand": warm - began + 980 * per_iteration,
        "steps_per_second": 128 * 133 / per_iteration,
    }


def jobs(part: str, seeds: int, iterations: int) -> Iterator[Job]:
    """Yield the runs of a part by name."""
    if part == "speed":
        for n in EXPERTS:
            yield f"speed {n}", lambda n=n: speed(n)
        return
    for seed in range(seeds):
        if part == "sign":
            yield f"sign {seed}", lambda s=seed: sign(s)
        elif part == "probes":
            for kind in PROBES:
                yield (
                    f"probe {kind} {seed} {iterations}",
                    lambda k=kind, s=seed: probes(k, s, iterations),
                )
        elif part == "experts":
            for n in EXPERTS:
                yield (
                    f"experts {n} {seed} {iterations}",
                    lambda n=n, s=seed: experts(n, s, iterations),
                )
        elif part == "baselines":
            for name in ("MAML", "ProMP", "GrBAL"):
                yield (
                    f"baseline {name} {seed} {iterations}",
                    lambda b=name, s=seed: baselines(b, s, iterations),
                )


def table(rows: dict[str, Row]) -> None:
    """Print means and deviations over seeds, one line for each kind of run."""
    kinds: dict[str, list[Row]] = {}
    for name, row in rows.items():
        kind, *rest = name.split()
        label = " ".join([kind, *rest[:1], *rest[2:]]) if kind in ("experts", "probe") else kind
        label = f"{kind} {rest[0]}" if kind in ("baseline", "speed") else label
        kinds.setdefault(label, []).append(row)
    for label, group in kinds.items():
        numbers = [
            f"{key} {np.mean(values):.4g} ± {np.std(values):.2g}"
            for key in group[0]
            if key != "seed" and isinstance(group[0][key], int | float)
            for values in [[row[key] for row in group]]
        ]
        print(f"{label} (n = {len(group)}): " + ", ".join(numbers))


def main() -> None:
    """Run a part, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "part", choices=["speed", "sign", "probes", "experts", "baselines", "table"]
    )
    parser.add_argument("--out", type=Path, default=Path("bench_meta_rl.jsonl"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=100)
    given = parser.parse_args()
    rows: dict[str, Row] = {}
    if given.out.exists():
        rows = dict(json.loads(line) for line in given.out.read_text().splitlines())
    for name, run in jobs(given.part, given.seeds, given.iterations):
        if name not in rows:
            rows[name] = run()
            with given.out.open("a") as file:
                file.write(json.dumps([name, rows[name]]) + "\n")
            print(name, rows[name], flush=True)
    if given.part == "table":
        table(rows)


if __name__ == "__main__":
    main()
