"""Seconds per environment step of training, and time to balance, beside Stable-Baselines3.

On one core and one thread, each in a process of its own:

- `speed`: SB3's PPO with its default settings and our agent with its own, both in
  `InvertedDoublePendulum-v5`; our compilation is reported on its own line.
- `race`: the seconds until the first mean return of 9,300 (deterministic, 10 episodes, evaluation
  not counted), for us with compilation counted, and for TRPO of sb3-contrib.

Run as `python benchmarks/bench_rl.py [speed] [race] [--seeds 3]`.
"""

import os

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

TASK = "InvertedDoublePendulum-v5"
SOLVED = 9300.0
# What everybody is allowed before they give up.
LIMIT = 400_000


def our_speed() -> None:
    """Print our seconds per million steps, once compiled, and the seconds before that."""
    from pinfactory.rl import SpecialistAgent

    agent = SpecialistAgent(TASK, 5)
    start = time.process_time()
    agent.learn(4096)
    print(f"first update, compilation included: {time.process_time() - start:.1f} s")
    agent.learn(40_960)
    start = time.process_time()
    agent.learn(409_600)
    seconds = time.process_time() - start
    print(f"ours: {409_600 / seconds:,.0f} steps/s")


def sb3_speed() -> None:
    """Print the same of SB3's PPO."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO

    torch.set_num_threads(1)
    model = PPO("MlpPolicy", gymnasium.make(TASK), device="cpu")
    model.learn(2048)
    start = time.process_time()
    model.learn(16_384)
    print(f"SB3 PPO: {16_384 / (time.process_time() - start):,.0f} steps/s")


def our_race(seed: int) -> None:
    """Print the seconds and steps until our agent balances, compilation counted."""
    start = time.process_time()
    from pinfactory.experiments.figures.rl_balance import LEARNING
    from pinfactory.rl import SpecialistAgent

    agent = SpecialistAgent(TASK, 5, seed=seed, **LEARNING)
    spent = 0.0

    def solved(progress: object) -> bool:
        nonlocal spent
        began = time.process_time()
        mean = agent.evaluate(10).deterministic.mean
        spent += time.process_time() - began
        return bool(mean >= SOLVED)

    agent.learn(200_000, solved, report_every=8192)
    print(f"ours {time.process_time() - start - spent:.1f} {agent.num_timesteps}")


def trpo_race(seed: int) -> None:
    """Print the seconds and steps until TRPO balances."""
    start = time.process_time()
    import gymnasium
    import torch
    from sb3_contrib import TRPO
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)
    model, judge = TRPO("MlpPolicy", gymnasium.make(TASK), seed=seed), gymnasium.make(TASK)
    spent = 0.0
    while model.num_timesteps < LIMIT:
        model.learn(8192, reset_num_timesteps=False)
        began = time.process_time()
        mean, _ = evaluate_policy(model, judge, 10, warn=False)
        spent += time.process_time() - began
        if float(mean) >= SOLVED:  # type: ignore[arg-type]
            break
    print(f"TRPO {time.process_time() - start - spent:.1f} {model.num_timesteps}")


PARTS: dict[str, Callable[..., None]] = {
    "our_speed": our_speed,
    "sb3_speed": sb3_speed,
    "our_race": our_race,
    "trpo_race": trpo_race,
}


def part(name: str, *arguments: object) -> str:
    """Run one part in a process of its own, and return what it prints."""
    command = [sys.executable, __file__, "--part", name, *map(str, arguments)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    print(printed, flush=True)
    return printed


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", help="speed, race; both by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", nargs="+")
    arguments = parser.parse_args()
    if arguments.part:
        name, *numbers = arguments.part
        PARTS[name](*map(int, numbers))
        return
    what = arguments.what or ["speed", "race"]
    if "speed" in what:
        part("our_speed")
        part("sb3_speed")
    if "race" in what:
        for who in ("our_race", "trpo_race"):
            lines = [part(who, seed).split() for seed in range(arguments.seeds)]
            seconds, steps = (statistics.median(float(line[i]) for line in lines) for i in (1, 2))
            print(f"{lines[0][0]}: median {seconds:.1f} s, {steps:,.0f} steps")


if __name__ == "__main__":
    main()
