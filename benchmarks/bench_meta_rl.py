"""Meta-reinforcement learning on the double pendulums of the paper: numbers for the guide.

`python benchmarks/bench_meta_rl.py PART [--out FILE] [--seeds 0 1 …] [--only NAME …]
[--iterations 200]` with one of

    sign        I(sign; M) after the probe, 2 experts
    experts     return on T and T′, before and after 100 updates, for 1, 2, 4, 8, 16 experts
    longer      the same with 2.4 times the iterations, the last two thirds of them divided
    paper       the same after 1,000 iterations of 64 tasks
    between     the same on T and on tasks between T and T′, by which settings are chosen
    children    the same for 4, 8, 16 experts with `child_scale=1.2`
    stronger    2 experts, all of whose answers are made stronger after training
    rates       2 experts with the paper's learning rates
    probes      return and I(sign; M) with each way to spend the first steps, and with a GRU
    baselines   MAML, ProMP and GrBAL, before and after adaptation
    model       GrBAL with more environment steps; plans are fewer and shorter while it learns
    families    pendulums and cart-poles, 1 and 2 experts
    regulator   a linear-quadratic regulator that knows its body, after probes of 0 to 5 steps
    table       prints what is in the file

`--only` picks numbers of experts, probes, methods or families. Runs on one core. Every result is
written to the file as soon as it is there; what is in the file is not run again. Until they divide,
agents of two and more experts learn the same: that is done once, and kept in a file. Seconds are
those of the processor, which others on the machine disturb less.
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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_are

from pinfactory.baselines.rl_model import GrBAL
from pinfactory.callbacks import Callback, Checkpoint
from pinfactory.experiments.figures.meta_rl import BASELINES, TUNED
from pinfactory.persistence import save_tree
from pinfactory.rl.envs import State
from pinfactory.rl.meta import (
    MetaSpecialistAgent,
    ParameterFamily,
    Uniform,
    cart_pole_tasks,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
    pendulum_tasks,
)
from pinfactory.rl.meta.evaluate import group_values, information_about

# New tasks that agents are judged by.
JUDGED = 2048
T, NEW = double_pendulum_tasks(), double_pendulum_new_tasks()
# Gravity, motors and starts a little beyond T, not as far as T′.
BETWEEN = ParameterFamily(
    T.env,
    {
        **T.parameters,
        "start_position": (0.0, Uniform(-0.2, 0.2), Uniform(-0.2, 0.2)),
        "gear": Uniform(180.0, 220.0),
        "gravity": (0.0, Uniform(-6.5, -4.9)),
    },
)
EXPERTS = ("1", "2", "4", "8", "16")
PROBES = ("shake", "noise", "prior", "expert", "gru")
FAMILIES: dict[str, dict[str, Any]] = {
    "pendulum": {"family": pendulum_tasks(), "gamma": 0.95, "probe_size": 0.5},
    "cart_pole": {"family": cart_pole_tasks()},
}
Row = dict[str, Any]


class Until(Callback):
    """Stops a training after so many iterations."""

    def __init__(self, iteration: float) -> None:
        self.iteration = iteration

    def chunk(self, progress: Any, run: Any) -> bool:
        """Say whether that is enough."""
        return bool(progress.step >= self.iteration)


def before_growth(agent: MetaSpecialistAgent, iterations: int) -> Path:
    """Return a checkpoint of an agent of two or more experts just before they are split."""
    share = agent.get_params()["growth_fraction"]
    name = f"{agent.seed}_{iterations}_{share:.2f}.pin"
    shared, own = Path(f"before_growth_{name}"), Path(f"meta_{agent.n_experts}_{name}")
    like = agent.prepared_run(iterations)
    if not shared.exists():
        part = shared.with_suffix(".part")
        first = MetaSpecialistAgent(agent.family, **agent.get_params() | {"n_experts": 2})
        first.learn(iterations, Until(share * iterations), checkpoint=part)
        part.rename(shared)

    def future(run: Any) -> tuple[Any, ...]:
        hyper = run.state[0].hyper
        return hyper.n_experts, hyper.split_interval, hyper.child_scale

    run = eqx.tree_at(future, Checkpoint.resume(shared, like), future(like))
    save_tree(own, run, kind=Checkpoint.KIND)
    return own


def trained(
    n_experts: int, seed: int, iterations: int, *, sharing: bool = False, **settings: Any
) -> tuple[MetaSpecialistAgent, Row]:
    """Train an agent; agents of one capacity share a compiled program."""
    began = time.process_time()
    settings = {"capacity": 16, "seed": seed, "family": T} | settings
    agent = MetaSpecialistAgent(n_experts=n_experts, **settings)
    checkpoint = before_growth(agent, iterations) if sharing and n_experts > 1 else None
    agent.learn(iterations, checkpoint=checkpoint)
    seconds = time.process_time() - began
    responsibilities, tasks = agent.responsibilities(n_tasks=1024)
    return agent, {
        "n_experts": n_experts,
        "seed": seed,
        "steps": agent.num_timesteps,
        "seconds": seconds,
        "sign": information_about(group_values(tasks["control_sign"]), responsibilities),
    }


def judged(agent: MetaSpecialistAgent, place: str = "T′", family: Any = NEW) -> Row:
    """Return the mean returns in new tasks of T and of T′ or another family."""
    return {
        name: agent.evaluate(tasks, seed=0, n_tasks=JUDGED).deterministic.mean
        for name, tasks in (("T", T), (place, family))
    }


def sign(_: str, seed: int, iterations: int) -> Row:
    """Measure what the choice of one of two experts tells about the sign of the motor."""
    return trained(2, seed, iterations)[1]


def rates(n_experts: str, seed: int, iterations: int) -> Row:
    """Train and judge with the learning rates of the paper's appendix."""
    slow = {"learning_rate": 1e-4, "selector_learning_rate": 1e-4, "critic_learning_rate": 1e-3}
    agent, row = trained(int(n_experts), seed, iterations, **slow)
    return {**row, **judged(agent)}


def probes(kind: str, seed: int, iterations: int) -> Row:
    """Train and judge with one kind of probe, or with another recurrent cell."""
    settings = {"selector_cell": "gru"} if kind == "gru" else {"probe": kind}
    agent, row = trained(2, seed, iterations, **settings)
    return {**row, **judged(agent)}


def experts(n_experts: str, seed: int, iterations: int, **settings: Any) -> Row:
    """Judge on T and T′, and on T′ once more after 100 updates."""
    agent, row = trained(int(n_experts), seed, iterations, sharing=True, **settings)
    information = agent.information_
    row["selector_bits"], row["expert_bits"] = information.selector, information.experts
    row["effective_experts"] = information.effective_experts
    row["about"] = information.about
    row["curve"] = [
        [p.step, float(p.info.episode_return[0])]
        for p in agent.history_
        if np.isfinite(p.info.episode_return[0])
    ]
    row |= judged(agent)
    row["T′ after"] = agent.evaluate(NEW, seed=0, n_tasks=JUDGED, updates=100).deterministic.mean
    return row


def longer(n_experts: str, seed: int, iterations: int) -> Row:
    """Do the same with as long a time before growth, and eight times the time after it."""
    return experts(n_experts, seed, round(2.4 * iterations), growth_fraction=1 / 3)


def paper(n_experts: str, seed: int, _: int) -> Row:
    """Do the same in the paper's 1,000 iterations, two thirds of them after growth begins."""
    return experts(n_experts, seed, 1000, growth_fraction=1 / 3)


def between(n_experts: str, seed: int, iterations: int) -> Row:
    """Judge on tasks between T and T′."""
    agent, row = trained(int(n_experts), seed, iterations, sharing=True)
    return row | judged(agent, "between", BETWEEN)


def children(n_experts: str, seed: int, iterations: int) -> Row:
    """Do the same with children whose answers are larger than those of their parents."""
    return experts(n_experts, seed, iterations, child_scale=1.2)


def stronger(_: str, seed: int, iterations: int) -> Row:
    """Judge two experts as they are, and with all their answers made stronger afterwards."""
    agent, row = trained(2, seed, iterations)
    learned = agent.state_

    def last(state: Any) -> Any:
        layer = state.policy.hierarchy.experts.network.layers[-1]
        return layer.weight, layer.bias

    for factor in (1.0, 1.2, 1.44, 1.73):
        means = np.where(np.arange(2) < 1, factor, 1.0)
        weight, bias = last(learned)
        scaled = (weight * means[:, None], bias * means)
        other = agent.copy(state=eqx.tree_at(last, learned, scaled))
        row |= {f"{name} × {factor}": value for name, value in judged(other).items()}
    return row


def baselines(name: str, seed: int, iterations: int) -> Row:
    """Judge a baseline before and after it adapts to a task."""
    began = time.process_time()
    learner = BASELINES[name](T, seed=seed, **TUNED[name]).learn(iterations)
    return adapting(name, learner, {"seed": seed, "seconds": time.process_time() - began})


def adapting(name: str, learner: Any, row: Row) -> Row:
    """Return the row with mean returns before and after adaptation."""
    row["steps"] = learner.num_timesteps
    moments: dict[str, Row] = {"before": {"steps": 0}, "after": {"steps": 1}}
    if name == "GrBAL":
        moments = {"before": {"adapting": False}, "after": {"adapting": True}}
    for place, family in (("T", T), ("T′", NEW)):
        for moment, how in moments.items():
            n_tasks = 64 if name == "GrBAL" else 256
            row[f"{place} {moment}"] = learner.evaluate(family, n_tasks=n_tasks, **how).mean
    return row


def model(name: str, seed: int, iterations: int) -> Row:
    """Do the same for GrBAL with as many tasks as the others have.

    So that it can have as many environment steps, too, plans are fewer and shorter while it learns,
    but not when it is judged.
    """
    began = time.process_time()
    learner = GrBAL(T, seed=seed, n_tasks=64, plans=32, horizon=12, **TUNED[name])
    learner.learn(iterations)
    learner.planner = replace(learner.planner, plans=64, horizon=16)
    return adapting(name, learner, {"seed": seed, "seconds": time.process_time() - began})


def families(name: str, seed: int, iterations: int) -> Row:
    """Train one and two experts on another family."""
    row: Row = {"seed": seed}
    for n in (1, 2):
        agent, found = trained(n, seed, iterations, capacity=2, **FAMILIES[name])
        row[f"return {n}"] = agent.evaluate(seed=0).deterministic.mean
        row["sign"], row["seconds"] = found["sign"], found["seconds"]
    return row


def regulator(steps: str, seed: int, _: int) -> Row:
    """Judge regulators for the true bodies, with the best of four weights of the control."""
    row: Row = {"seed": seed}
    for place, family in (("T", T), ("T′", NEW)):
        env, params = family.env, family.draw(np.random.default_rng([seed, 1, 0]), 256)

        def motion(z: Any, u: Any, body: Any, env: Any = env) -> Any:
            now = State(z[:3], z[3:], jnp.zeros((), jnp.int32))
            after, _ = env.step(jax.random.key(0), now, u, body)
            return jnp.concatenate([after.position, after.velocity])

        a, b = (
            np.asarray(
                jax.jit(jax.vmap(jax.jacfwd(motion, i), (None, None, 0)))(
                    jnp.zeros(6), jnp.zeros(1), params
                ),
                float,
            )
            for i in (0, 1)
        )
        returns = []
        for price in (1.0, 3.0, 10.0, 30.0):
            gains = []
            for one, push in zip(a, b, strict=True):
                costs = np.diag([1.0, 1.0, 1.0, 0.1, 0.1, 0.1])
                p = solve_discrete_are(one, push, costs, price * np.eye(1))
                gains.append(np.linalg.solve(push.T @ p @ push + price, push.T @ p @ one))
            gain = jnp.asarray(np.array(gains), jnp.float32)

            def episode(gain: Any, body: Any, env: Any = env) -> Any:
                def step(carry: Any, t: Any) -> Any:
                    state, alive, total = carry
                    u = -gain @ jnp.concatenate([state.position, state.velocity])
                    u = jnp.where(t < int(steps), 0.1 * (1 - 2 * (t % 2)), u)
                    state, seen = env.step(jax.random.key(0), state, u, body)
                    return (state, alive & ~seen.terminated, total + alive * seen.reward), None

                first = (env.reset(jax.random.key(0), body)[0], True, 0.0)
                return jax.lax.scan(step, first, jnp.arange(env.max_steps))[0][2]

            returns.append(float(jax.jit(jax.vmap(episode))(gain, params).mean()))
        row[place] = max(returns)
    return row


PARTS: dict[str, tuple[Callable[[str, int, int], Row], tuple[str, ...]]] = {
    "sign": (sign, ("2",)),
    "experts": (experts, EXPERTS),
    "longer": (longer, EXPERTS),
    "paper": (paper, EXPERTS),
    "between": (between, EXPERTS),
    "children": (children, EXPERTS[2:]),
    "stronger": (stronger, ("2",)),
    "rates": (rates, ("2",)),
    "probes": (probes, PROBES),
    "baselines": (baselines, tuple(BASELINES)),
    "model": (model, ("GrBAL",)),
    "families": (families, tuple(FAMILIES)),
    "regulator": (regulator, ("0", "1", "2", "3", "5")),
}


def table(rows: dict[str, Row]) -> None:
    """Print means and deviations over seeds, one line for each kind of run."""
    kinds: dict[str, list[Row]] = {}
    for name, row in rows.items():
        part, what, _, iterations = name.split()
        kinds.setdefault(f"{part} {what}, {iterations} iterations", []).append(row)
    for label, group in sorted(kinds.items()):
        numbers = [
            f"{key} {np.mean(values):.4g} ± {np.std(values, ddof=len(values) > 1):.2g}"
            for key in group[0]
            if key != "seed" and isinstance(group[0][key], int | float)
            for values in [[row[key] for row in group]]
        ]
        print(f"{label} (n = {len(group)}): " + ", ".join(numbers))


def main() -> None:
    """Run a part, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("part", choices=[*PARTS, "table"])
    parser.add_argument("--out", type=Path, default=Path("bench_meta_rl.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--iterations", type=int, default=200)
    given = parser.parse_args()
    rows: dict[str, Row] = {}
    if given.out.exists():
        rows = dict(json.loads(line) for line in given.out.read_text().splitlines())
    if given.part == "table":
        table(rows)
        return
    run, everything = PARTS[given.part]
    for seed in given.seeds:
        for what in given.only or everything:
            name = f"{given.part} {what} {seed} {given.iterations}"
            if name not in rows:
                rows[name] = run(what, seed, given.iterations)
                with given.out.open("a") as file:
                    file.write(json.dumps([name, rows[name]]) + "\n")
                print(name, rows[name], flush=True)


if __name__ == "__main__":
    main()
