"""TRPO of sb3-contrib beside our agents, judged by the same episodes."""

import copy
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np

from pinfactory.experiments.balancing import ID, play


def train_trpo(
    total: int, seed: int, *, reports: int, n_episodes: int, n_judged: int
) -> dict[str, Any]:
    """Train TRPO with its default settings to balance in MuJoCo; measure it as `_rl.train` does.

    Without that package there is nothing to train; the result says so.
    """
    if find_spec("sb3_contrib") is None:
        return {"missing": "sb3_contrib"}
    import gymnasium
    import torch
    from sb3_contrib import TRPO

    torch.set_num_threads(1)
    model: Any = TRPO("MlpPolicy", gymnasium.make(ID), seed=seed)
    curves: dict[str, list[float]] = {"steps": [], "deterministic": [], "stochastic": []}
    best, highest = model.get_parameters(), -np.inf

    def act(x: np.ndarray, sure: bool) -> np.ndarray:
        return model.predict(x, deterministic=sure)[0]

    def score(n: int, seed: int) -> dict[str, float]:
        return {
            how: float(np.mean(play(partial(act, sure=sure), n, seed)))
            for how, sure in (("deterministic", True), ("stochastic", False))
        }

    for _ in range(reports):
        model.learn(total // reports, reset_num_timesteps=False)
        curves["steps"].append(model.num_timesteps)
        now = score(n_episodes, seed=0)
        for how, value in now.items():
            curves[how].append(value)
        if now["deterministic"] > highest:
            best, highest = copy.deepcopy(model.get_parameters()), now["deterministic"]
    final = {f"final_{how}": value for how, value in score(n_judged, seed=1).items()}
    model.set_parameters(best)
    kept = {f"best_{how}": value for how, value in score(n_judged, seed=1).items()}
    return {**curves, **final, **kept}
