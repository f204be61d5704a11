"""How good committees of linear experts are at the tasks the library promises, over ten seeds.

- `pendulum`, `cart_pole_swing_up`: seeds that solve it with 1, 2, 5 and 3 held linear experts,
- `cart_pole_search`: the best that a direct search finds for *one* clipped linear controller there,
- `double_pendulum_backward`, `double_pendulum_hanging`: how far one linear expert, eight, and a
  network swing it up, having learned backward from upright or from hanging starts alone,
- `cart_pole`: two linear experts, stopped when they return 500, judged by other episodes,
- `balance`: five linear experts at the paper's β, and their returns from the same starts here and
  in real MuJoCo,
- `balance_trpo`: TRPO of sb3-contrib with its default settings, trained until it is as good by the
  same judge.

Run as `python benchmarks/bench_rl_tasks.py [TASK …] [--seeds 10] [--first 0] [--kinds KIND …]`;
about ten seconds of one core for each seed and kind, a minute and a half for each of TRPO and of
the double pendulum's swing-up. Figures of the same settings are made by `pinfactory reproduce`.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from pinfactory.experiments.figures import rl_balance, rl_cart_pole, rl_swing_up
from pinfactory.experiments.figures._rl_judge import ID, play, play_original
from pinfactory.rl import SpecialistAgent, envs

# One lost start in a hundred costs a mean of 93: fewer episodes cannot tell 9,300 from less.
EPISODES = 2000
# Where training stops: 9,300 with a margin, because it is judged by other episodes.
GOOD = 9340.0
# Environment steps between two looks at whether that is reached, and the most there may be.
LOOK, LIMIT = 8192, 200_000
# Episodes that are played twice from the same start, here and in MuJoCo.
PAIRS = 32


def swing_up(task: str, total: int, seeds: Sequence[int], kinds: Sequence[str]) -> None:
    """Print how many seeds solve a swing-up, for each number of experts."""
    found = rl_swing_up.TASKS[task]
    for kind in _among(kinds, found.kinds):
        if kind == rl_swing_up.NETWORK:
            continue
        settings = found.learning | rl_swing_up.KINDS[kind]
        rows = []
        for seed in seeds:
            agent = SpecialistAgent(found.env(), seed=seed, **settings).learn(total)
            sure, drawn = (episodes.mean for episodes in agent.evaluate(100, seed=1))
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


def double_pendulum(backward: bool, seeds: Sequence[int], kinds: Sequence[str]) -> None:
    """Print how far each kind gets from hanging, having learned backward or from there alone."""
    name, total = "double pendulum", 3_000_000
    task = rl_swing_up.TASKS[name]
    way = "backward from upright" if backward else "from hanging alone"
    for kind in _among(kinds, task.kinds):
        rows = []
        for seed in seeds:
            phases = task.phases if backward else ()
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
            numbers = " ".join(f"{number:.2f}" for number in rows[-1])
            print(f"  {kind}, {way}, seed {seed}: {numbers}", flush=True)
        sure, drawn, stands, effective, selector, experts = np.array(rows).T
        print(
            f"{name}, {kind}, {way}: {np.sum(np.minimum(sure, drawn) >= task.solved)} of "
            f"{len(seeds)} seeds solve it; deterministic {_range(sure)}, stochastic "
            f"{_range(drawn)}, upright {_range(stands, 2)} of the time; effective experts "
            f"{_range(effective, 1)}, I(S;M) {_range(selector, 2)}, I(S;A|M) "
            f"{_range(experts, 2)} bits",
            flush=True,
        )


def _among(kinds: Sequence[str], known: Sequence[str]) -> list[str]:
    return [kind for kind in known if not kinds or kind in kinds]


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
    """Print the steps until two linear experts return 500 in CartPole-v1, and whether they do."""
    settings = {"n_experts": 2, "beta_selector": 100.0, "beta_expert": 3.0}
    rows = []
    for seed in seeds:
        agent = SpecialistAgent("CartPole-v1", seed=seed, **settings | rl_cart_pole.LEARNING)

        def lowest(judge: int, agent: SpecialistAgent = agent) -> float:
            return min(episodes.mean for episodes in agent.evaluate(100, seed=judge))

        def good(progress: object, lowest: Callable[[int], float] = lowest) -> bool:
            return lowest(0) == 500.0

        agent.learn(99_000, good, report_every=LOOK)
        rows.append((agent.num_timesteps, lowest(1)))
    steps, returns = np.array(rows).T
    print(
        f"CartPole-v1, 2 linear experts: {np.sum(returns == 500.0)} of {len(seeds)} seeds return "
        f"500 both ways in other episodes, after {_range(steps)} steps"
    )


def balance(seeds: Sequence[int]) -> None:
    """Print the steps until five experts balance, their return, and how far MuJoCo's is from it."""
    rows = []
    for seed in seeds:
        agent = SpecialistAgent(ID, 5, seed=seed, **rl_balance.LEARNING)

        def good(progress: object, agent: SpecialistAgent = agent) -> bool:
            return agent.play(EPISODES, deterministic=True, seed=0).mean >= GOOD

        agent.learn(LIMIT, good, report_every=LOOK)
        found = agent.play(EPISODES, deterministic=True, seed=1).mean

        def act(observation: np.ndarray, agent: SpecialistAgent = agent) -> np.ndarray:
            return agent.predict(observation, deterministic=True)[0]

        here, there = (how(act, PAIRS, seed=2) for how in (play, play_original))
        apart = float(np.max(np.abs(here - there)))
        rows.append((agent.num_timesteps, found, here.mean(), there.mean(), apart))
        print(
            "  seed {}: {:,} steps, {:.0f}; from the same {} starts {:.2f} here and {:.2f} in "
            "MuJoCo, at most {:.3f} apart".format(seed, *rows[-1][:2], PAIRS, *rows[-1][2:]),
            flush=True,
        )
    _summary("5 linear experts", [row[:2] for row in rows])
    *_, apart = np.array(rows).T
    print(f"balance, largest difference to MuJoCo from the same start: {_range(apart, 4)}")


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
    steps, returns = np.array(rows).T
    print(
        f"balance, {who}: {np.sum(returns >= rl_balance.SOLVED)} of {len(rows)} seeds at 9,300 or "
        f"more after {_range(steps)} steps; return {_range(returns)}"
    )


def _range(values: np.ndarray, digits: int = 0) -> str:
    middle, low, high = (
        f"{value:,.{digits}f}" for value in (np.median(values), values.min(), values.max())
    )
    return f"{middle} ({low} to {high})"


# Those with several kinds of agents.
SWING_UPS: dict[str, Callable[[Sequence[int], Sequence[str]], None]] = {
    "pendulum": partial(swing_up, "pendulum", 614_400),
    "cart_pole_swing_up": partial(swing_up, "cart-pole", 1_024_000),
    "double_pendulum_backward": partial(double_pendulum, True),
    "double_pendulum_hanging": partial(double_pendulum, False),
}
OTHERS: dict[str, Callable[[Sequence[int]], None]] = {
    "cart_pole_search": cart_pole_search,
    "cart_pole": cart_pole,
    "balance": balance,
    "balance_trpo": balance_trpo,
}


def main() -> None:
    """Print a line for each task."""
    parser = argparse.ArgumentParser(description=__doc__)
    tasks = (*SWING_UPS, *OTHERS)
    parser.add_argument("task", nargs="*", help=f"of {', '.join(tasks)}; all by default")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    kinds = ", ".join(map(repr, rl_swing_up.KINDS))
    parser.add_argument("--kinds", nargs="+", default=(), help=f"of swing-ups: some of {kinds}")
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    for task in arguments.task or tasks:
        if task in SWING_UPS:
            SWING_UPS[task](seeds, arguments.kinds)
        else:
            OTHERS[task](seeds)


if __name__ == "__main__":
    main()
