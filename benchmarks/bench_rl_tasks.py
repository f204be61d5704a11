"""How good committees of linear experts are at the tasks the library promises, over ten seeds.

- `pendulum`, `cart_pole_swing_up`: seeds that solve it with 1, 2, 5 and 3 held linear experts,
- `cart_pole_search`: the best that a direct search finds for *one* clipped linear controller there,
- `double_pendulum_swing_up`: how far each gets, from hanging starts and backward from upright,
- `cart_pole`: return of two linear experts after at most 100,000 steps,
- `balance`: five linear experts at the paper's β, and their policy in real MuJoCo,
- `balance_trpo`: TRPO of sb3-contrib with its default settings, trained until it is as good by the
  same judge.

Run as `python benchmarks/bench_rl_tasks.py [TASK …] [--seeds 10] [--first 0]`; about ten seconds of
one core for each seed and kind, a minute and a half for each of TRPO and of the double pendulum's
swing-up. Figures of the same settings are made by `pinfactory reproduce`.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.experiments import rl_balance, rl_cart_pole, rl_swing_up
from pinfactory.experiments._rl_trpo import ID, play
from pinfactory.rl import SpecialistAgent, envs

# One lost start in a hundred costs a mean of 93: fewer episodes cannot tell 9,300 from less.
EPISODES = 2000
# Where training stops: 9,300 with a margin, because it is judged by other episodes.
GOOD = 9340.0
# Environment steps between two looks at whether that is reached, and the most there may be.
LOOK, LIMIT = 8192, 200_000


def swing_up(task: str, total: int, seeds: Sequence[int]) -> None:
    """Print how many seeds solve a swing-up, for each number of experts."""
    found = rl_swing_up.TASKS[task]
    for kind in found.kinds:
        if kind == rl_swing_up.NETWORK:
            continue
        settings = found.learning | rl_swing_up.KINDS[kind]
        rows = []
        for seed in seeds:
            agent = SpecialistAgent(found.env(), seed=seed, **settings).learn(total)
            sure, drawn = (
                agent.evaluate(100, deterministic=how, seed=1).returns.mean()
                for how in (True, False)
            )
            bits = agent.information_
            rows.append((sure, drawn, bits.effective_experts, bits.selector, bits.experts))
            print(f"  seed {seed}: " + " ".join(f"{number:.2f}" for number in rows[-1]), flush=True)
        columns = np.array(rows).T
        solved = np.sum(columns[:2].min(axis=0) >= found.solved)
        print(
            f"{task}, {kind}: {solved} of {len(seeds)} seeds solve it; deterministic "
            f"{_range(columns[0])}, stochastic {_range(columns[1])}; effective experts "
            f"{_range(columns[2], 1)}, I(S;M) {_range(columns[3], 2)}, I(S;A|M) "
            f"{_range(columns[4], 2)} bits",
            flush=True,
        )


def cart_pole_search(seeds: Sequence[int]) -> None:
    """Print the return of one clipped linear controller, found by the cross-entropy method."""
    env = envs.CartPoleSwingUp()
    params = env.default_params()

    def episode(weights: jax.Array, key: jax.Array) -> jax.Array:
        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            state, x = carry
            action = jnp.clip(weights[:-1] @ x + weights[-1], -1.0, 1.0)
            state, moved = env.step(key, state, action[None], params)
            return (state, moved.observation), moved.reward

        return jnp.sum(jax.lax.scan(step, env.reset(key, params), None, env.max_steps)[1])

    returns = jax.jit(jax.vmap(jax.vmap(episode, (None, 0)), (0, None)))
    found = []
    for seed in seeds:
        random, widest = np.random.default_rng(seed), (3.0, 10.0, 30.0)[seed % 3]
        centre, spread = np.zeros(6), np.full(6, widest)
        for generation in range(30):
            tried = (centre + spread * random.normal(size=(256, 6))).astype(np.float32)
            score = np.asarray(returns(tried, _keys(1000 * seed + generation, 3))).mean(axis=1)
            best = tried[np.argsort(score)[-16:]]
            centre, spread = best.mean(axis=0), best.std(axis=0) + 0.1 * widest * 0.9**generation
        found.append(returns(centre[None].astype(np.float32), _keys(-1, 100)).mean())
        print(f"  start {seed}: {found[-1]:.0f}", flush=True)
    print(f"cart-pole, one clipped linear controller, searched for: {_range(np.array(found))}")


def _keys(seed: int, n: int) -> jax.Array:
    return jax.random.split(jax.random.key(seed), n)


def double_pendulum_swing_up(seeds: Sequence[int]) -> None:
    """Print how far each kind gets from hanging, having learned from there or backward."""
    name, total = "double pendulum", 3_000_000
    task = rl_swing_up.TASKS[name]
    ways = {"backward from upright": task.phases, "from hanging alone": ()}
    for way, phases in ways.items():
        for kind in task.kinds:
            rows = []
            for seed in seeds:
                agent, found = rl_swing_up.learn(name, kind, seed, total, 4, phases)
                bits = agent.information_
                rows.append(
                    (
                        found["final_deterministic"],
                        found["final_stochastic"],
                        upright(agent, 100),
                        bits.effective_experts,
                        bits.selector,
                        bits.experts,
                    )
                )
                print(f"  seed {seed}: " + " ".join(f"{n:.2f}" for n in rows[-1]), flush=True)
            sure, drawn, stands, effective, selector, experts = np.array(rows).T
            print(
                f"{name}, {kind}, {way}: {np.sum(np.minimum(sure, drawn) >= task.solved)} of "
                f"{len(seeds)} seeds solve it; deterministic {_range(sure)}, stochastic "
                f"{_range(drawn)}, upright {_range(stands, 2)} of the time; effective experts "
                f"{_range(effective, 1)}, I(S;M) {_range(selector, 2)}, I(S;A|M) "
                f"{_range(experts, 2)} bits",
                flush=True,
            )


def upright(agent: SpecialistAgent, n: int) -> float:
    """Return for what share of the steps the tip is higher than nine tenths of the way up."""
    env = envs.DoublePendulumSwingUp()
    params = envs.replicate(env.default_params(), n)
    step = jax.jit(partial(envs.step_all, env))
    states, observation = jax.jit(partial(envs.reset_all, env))(jax.random.key(1), params)
    memory, up = None, 0.0
    for key in _keys(2, env.max_steps or 0):
        action, memory = agent.predict(np.asarray(observation), memory, deterministic=True)
        states, observation, moved = step(key, states, action, params)
        seen = np.asarray(moved.observation)
        sines, cosines = seen[:, 1:3].T, seen[:, 3:5].T
        height = 0.5 * (cosines[0] + cosines[0] * cosines[1] - sines[0] * sines[1])
        up += float(np.mean(height > 0.8)) / (env.max_steps or 1)
    return up


def cart_pole(seeds: Sequence[int]) -> None:
    """Print the returns of two linear experts in CartPole-v1."""
    settings = {"n_experts": 2, "beta_selector": 100.0, "beta_expert": 3.0}
    returns = []
    for seed in seeds:
        agent = SpecialistAgent("CartPole-v1", seed=seed, **settings | rl_cart_pole.LEARNING)
        agent.learn(99_000)
        both = (agent.evaluate(100, deterministic=sure, seed=1) for sure in (True, False))
        returns.append(min(episodes.returns.mean() for episodes in both))
    perfect = np.sum(np.array(returns) == 500.0)
    print(f"CartPole-v1, 2 linear experts: {perfect} of {len(seeds)} seeds return 500 both ways")


def balance(seeds: Sequence[int]) -> None:
    """Print the steps until five experts balance, and their return here and in MuJoCo."""
    rows = []
    for seed in seeds:
        agent = SpecialistAgent(ID, 5, seed=seed, **rl_balance.LEARNING)

        def good(progress: object, agent: SpecialistAgent = agent) -> bool:
            return bool(agent.evaluate(EPISODES, seed=0).returns.mean() >= GOOD)

        agent.learn(LIMIT, good, report_every=LOOK)
        ours = float(agent.evaluate(EPISODES, seed=1).returns.mean())
        agent.set_env(partial(gymnasium.make, ID))
        theirs = float(agent.evaluate(32, seed=1).returns.mean())
        rows.append((agent.num_timesteps, ours, theirs))
        print("  seed {}: {:,} steps, {:.0f}, MuJoCo {:.0f}".format(seed, *rows[-1]), flush=True)
    _summary("5 linear experts", rows)


def balance_trpo(seeds: Sequence[int]) -> None:
    """Print the same of TRPO, which learns in MuJoCo and is judged by the same episodes."""
    import torch
    from sb3_contrib import TRPO

    torch.set_num_threads(1)
    rows = []
    for seed in seeds:
        model = TRPO("MlpPolicy", gymnasium.make(ID), seed=seed)

        def act(observation: np.ndarray, model: Any = model) -> np.ndarray:
            return model.predict(observation, deterministic=True)[0]

        while model.num_timesteps < LIMIT:
            model.learn(LOOK, reset_num_timesteps=False)
            if play(act, EPISODES, seed=0).mean() >= GOOD:
                break
        rows.append((model.num_timesteps, float(play(act, EPISODES, seed=1).mean())))
        print("  seed {}: {:,} steps, {:.0f}".format(seed, *rows[-1]), flush=True)
    _summary("TRPO", rows)


def _summary(who: str, rows: Sequence[tuple[float, ...]]) -> None:
    steps, ours, *mujoco = np.array(rows).T
    print(
        f"balance, {who}: {np.sum(ours >= rl_balance.SOLVED)} of {len(rows)} seeds at 9,300 or "
        f"more after {_range(steps)} steps; return {_range(ours)}"
        + "".join(f", in MuJoCo {_range(column)}" for column in mujoco)
    )


def _range(values: np.ndarray, digits: int = 0) -> str:
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (np.median(values), values.min(), values.max())
    )
    return f"{middle} ({low} to {high})"


TASKS: dict[str, Callable[[Sequence[int]], None]] = {
    "pendulum": partial(swing_up, "pendulum", 614_400),
    "cart_pole_swing_up": partial(swing_up, "cart-pole", 1_024_000),
    "cart_pole_search": cart_pole_search,
    "double_pendulum_swing_up": double_pendulum_swing_up,
    "cart_pole": cart_pole,
    "balance": balance,
    "balance_trpo": balance_trpo,
}


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", nargs="*", help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for task in arguments.task or TASKS:
        TASKS[task](seeds)


if __name__ == "__main__":
    main()
