"""Reinforcement learning beside Stable-Baselines3: training speed, and a race to balance."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import numpy as np

from pinfactory.experiments.balancing import ID, play, play_original
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.figures.rl_balance import LEARNING, SOLVED
from pinfactory.rl import SpecialistAgent

TITLE = "Training agents compared with Stable-Baselines3"
ABOUT = """
Balancing a double pendulum (`InvertedDoublePendulum-v5`) on one core, in processor time. Speed:
five experts and SB3's PPO, both with default settings, alternating, without compilation. Time to
balance: five linear experts with the settings of the figure, and TRPO of sb3-contrib with its
default settings, learn until an evaluation over many episodes shows a return of 9,340. They are
then tested on as many other episodes. Compilation counts, evaluations do not. Finally the agent
plays the same episodes in MuJoCo.
"""
LOG_SCALE = ("steps per second",)
REQUIRES = ("gymnasium", "mujoco", "stable_baselines3", "sb3_contrib")
ALONE = True

# Where training stops: 9,300 with a margin, because it is judged by other episodes.
GOOD = 9340.0
# Environment steps between two looks, and episodes played twice from the same start.
LOOK, PAIRS = 8192, 32


@dataclass(frozen=True)
class Settings(Presets):
    """Steps of a turn, and episodes of a look: one lost start in a hundred costs a mean of 93."""

    seeds: int = 10
    turns: int = 5
    our_steps: int = 204_800
    their_steps: int = 8_192
    n_episodes: int = 2000
    limit: int = 200_000

    QUICK: ClassVar[Mapping[str, Any]] = {"seeds": 1, "turns": 3, "n_episodes": 500}


def pieces(settings: Settings) -> Mapping[str, Callable[[], Any]]:
    """Return one piece for the speeds, and one for every seed of the race."""
    own = without(settings, "seeds")
    race = {f"race, seed {seed}": partial(_race, own, seed) for seed in range(settings.seeds)}
    return {"speed": partial(_speed, own), **race}


def _speed(settings: Settings) -> dict[str, Any]:
    from stable_baselines3 import PPO

    agent, model = SpecialistAgent(ID, 5), _peer(PPO, 0, device="cpu")
    sides = {"ours": (agent, settings.our_steps), "PPO": (model, settings.their_steps)}
    rates: dict[str, list[float]] = {who: [] for who in sides}
    for turn in range(-1, settings.turns):
        for who, (learner, steps) in sides.items():
            before, began = learner.num_timesteps, time.process_time()
            learner.learn(steps)
            seconds = time.process_time() - began
            if turn >= 0:  # the first one compiles
                done = learner.num_timesteps - (before if who == "ours" else 0)
                rates[who].append(done / seconds)
    return {"rates": rates}


def _peer(algorithm: Any, seed: int, **settings: Any) -> Any:
    import gymnasium
    import torch

    torch.set_num_threads(1)
    return algorithm("MlpPolicy", gymnasium.make(ID), seed=seed, **settings)


def _race(settings: Settings, seed: int) -> dict[str, Any]:
    from sb3_contrib import TRPO

    jax.clear_caches()

    def learn(agent: SpecialistAgent, good: Callable[[], bool]) -> None:
        agent.learn(settings.limit, lambda progress: good(), report_every=LOOK)

    def learn_trpo(model: Any, good: Callable[[], bool]) -> None:
        while model.num_timesteps < settings.limit:
            model.learn(LOOK, reset_num_timesteps=False)
            if good():
                return

    agent, ours = _run(settings, lambda: SpecialistAgent(ID, 5, seed=seed, **LEARNING), learn)
    _, theirs = _run(settings, lambda: _peer(TRPO, seed), learn_trpo)

    def act(observation: np.ndarray) -> np.ndarray:
        return agent.predict(observation, deterministic=True)[0]

    here, there = (how(act, PAIRS, seed=2) for how in (play, play_original))
    return {"race": {"ours": ours, "TRPO": theirs}, "apart": float(np.max(np.abs(here - there)))}


def _run(
    settings: Settings, make: Callable[[], Any], learn: Callable[[Any, Callable[[], bool]], None]
) -> tuple[Any, dict[str, float]]:
    """Train until a look is good; return the learner with its seconds, steps and return."""
    began, looks = time.process_time(), 0.0
    learner = make()

    def good() -> bool:
        nonlocal looks
        looked = time.process_time()
        enough = score(0) >= GOOD
        looks += time.process_time() - looked
        return enough

    def score(seed: int) -> float:
        def act(observation: np.ndarray) -> np.ndarray:
            return learner.predict(observation, deterministic=True)[0]

        return float(play(act, settings.n_episodes, seed).mean())

    learn(learner, good)
    seconds = time.process_time() - began - looks
    return learner, {"seconds": seconds, "steps": float(learner.num_timesteps), "return": score(1)}


def measures(results: Results) -> list[Measure]:
    """Return ratios first, then what they are made of."""
    rates = results["speed"]["rates"]
    found = [r for r in results.values() if "race" in r]
    rows = [
        Measure.over("times faster than PPO", np.divide(rates["ours"], rates["PPO"]), unit="×"),
        Measure.over("times sooner than TRPO", [_ratio(r["race"]) for r in found], unit="×"),
    ]
    for who, label in (("ours", "ours"), ("PPO", "SB3 PPO")):
        rows.append(Measure.over(f"steps per second, {label}", rates[who], unit="1/s"))
    for who, label in (("ours", "5 linear experts"), ("TRPO", "TRPO")):
        runs = [r["race"][who] for r in found]
        solved = float(np.mean([run["return"] >= SOLVED for run in runs]))
        rows.append(Measure(f"share of seeds that balance, {label}", solved, n=len(runs)))
        for key, unit in (("seconds", "s"), ("steps", ""), ("return", "")):
            values = [run[key] for run in runs]
            more = {"unit": unit, "higher_is_better": key == "return"}
            rows.append(Measure.over(f"{key} of the race, {label}", values, **more))
    apart = [r["apart"] for r in found]
    name = "largest difference of a return to MuJoCo"
    return [*rows, Measure.over(name, apart, higher_is_better=False)]


def _ratio(race: Mapping[str, Mapping[str, float]]) -> float:
    return race["TRPO"]["seconds"] / race["ours"]["seconds"]
