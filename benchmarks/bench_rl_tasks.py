"""How good committees of linear experts are at the tasks the library promises, over ten seeds.

- `pendulum`, `cart_pole_swing_up`: shares of seeds that solve it with 1, 2 and 5 linear experts,
- `cart_pole`: return of two linear experts after at most 100,000 steps,
- `balance`: five linear experts at the paper's β, and their best policy in real MuJoCo.

Run as `python benchmarks/bench_rl_tasks.py [TASK …] [--seeds 10]`; about a minute of one core for
each seed of a task. Figures of the same runs are made by `pinfactory reproduce`.
"""

import argparse
from functools import partial

import gymnasium
import numpy as np

from pinfactory.experiments import rl_balance, rl_cart_pole, rl_swing_up
from pinfactory.rl import SpecialistAgent

# One lost start in a hundred costs a mean of 93: fewer episodes cannot tell 9,300 from less.
EPISODES = 500
# Where training stops: 9,300 with a margin, because it is judged by other episodes.
GOOD = 9330.0


def swing_up(task: str, total: int, seeds: int) -> None:
    """Print how many seeds solve a swing-up, for each number of experts."""
    for kind in ("1 linear expert", "2 linear experts", "5 linear experts"):
        found = rl_swing_up.TASKS[task]
        settings = {"gamma": found.gamma, "learning_rate": found.learning_rate}
        returns = []
        for seed in range(seeds):
            agent = SpecialistAgent(
                found.env(), seed=seed, **settings | rl_swing_up.KINDS[kind]
            ).learn(total)
            both = (agent.evaluate(100, deterministic=sure, seed=1) for sure in (True, False))
            returns.append([episodes.returns.mean() for episodes in both])
        worst = np.min(returns, axis=1)
        print(
            f"{task}, {kind}: {np.sum(worst >= found.solved)} of {seeds} seeds solve it; "
            f"deterministic {_range(np.array(returns)[:, 0])}, "
            f"stochastic {_range(np.array(returns)[:, 1])}",
            flush=True,
        )


def cart_pole(seeds: int) -> None:
    """Print the returns of two linear experts in CartPole-v1."""
    returns = []
    for seed in range(seeds):
        agent = SpecialistAgent(
            "CartPole-v1",
            2,
            beta_selector=100.0,
            beta_expert=3.0,
            seed=seed,
            **rl_cart_pole.LEARNING,
        ).learn(99_000)
        both = (agent.evaluate(100, deterministic=sure, seed=1) for sure in (True, False))
        returns.append(min(episodes.returns.mean() for episodes in both))
    perfect = np.sum(np.array(returns) == 500.0)
    print(f"CartPole-v1, 2 linear experts: {perfect} of {seeds} seeds return 500 both ways")


def balance(seeds: int) -> None:
    """Print the steps to 9,300, and the return of that policy here and in MuJoCo."""
    ours, theirs, steps = [], [], []
    for seed in range(seeds):
        agent = SpecialistAgent("InvertedDoublePendulum-v5", 5, seed=seed, **rl_balance.LEARNING)

        def solved(progress: object, agent: SpecialistAgent = agent) -> bool:
            return bool(agent.evaluate(EPISODES, seed=0).returns.mean() >= GOOD)

        agent.learn(200_000, solved, report_every=8192)
        steps.append(agent.num_timesteps)
        ours.append(agent.evaluate(EPISODES, seed=1).returns.mean())
        agent.set_env(partial(gymnasium.make, "InvertedDoublePendulum-v5"))
        theirs.append(agent.evaluate(32, seed=1).returns.mean())
        print(f"  seed {seed}: {steps[-1]:,} steps, {ours[-1]:.0f}, MuJoCo {theirs[-1]:.0f}")
    print(
        f"balance, 5 linear experts: {np.sum(np.array(ours) >= 9300)} of {seeds} seeds at 9,300 or "
        f"more after {_range(np.array(steps))} steps; return {_range(np.array(ours))}, in MuJoCo "
        f"{_range(np.array(theirs))}"
    )


def _range(values: np.ndarray) -> str:
    return f"{np.median(values):,.0f} ({values.min():,.0f} to {values.max():,.0f})"


TASKS = {
    "pendulum": partial(swing_up, "pendulum", 614_400),
    "cart_pole_swing_up": partial(swing_up, "cart-pole", 1_024_000),
    "cart_pole": cart_pole,
    "balance": balance,
}


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="*", help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    for task in arguments.task or TASKS:
        TASKS[task](seeds=arguments.seeds)


if __name__ == "__main__":
    main()
