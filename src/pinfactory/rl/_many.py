"""Several agents that differ in seeds or settings."""

from collections.abc import Mapping, Sequence
from typing import Any

from tqdm.auto import tqdm

from ._agent import SpecialistAgent


def train_agents(
    env: Any,
    total_timesteps: int,
    *,
    seeds: Sequence[int] = (0,),
    grid: Sequence[Mapping[str, Any]] = ({},),
    progress_bar: bool = False,
    **settings: Any,
) -> list[SpecialistAgent]:
    """Train an agent for every entry of `grid` and every seed, with one compiled program.

    They train one after the other: a single agent nearly fills a core, side by side they would be
    15 % faster there and need a program of their own for every number of replicas.

    Parameters
    ----------
    env, total_timesteps, **settings
        As of `SpecialistAgent` and its `learn`.
    seeds
        A replica for each.
    grid
        Settings in which agents differ, such as `{"beta_selector": 5.0}` or `{"n_experts": 2}`.
        β, learning rate, discount, `hold` and the number of experts do not compile anew.

    Returns
    -------
    list of SpecialistAgent
        Seed by seed for the first entry of the grid, then for the next.
    """
    sizes = [each.get("n_experts", settings.get("n_experts", 5)) for each in grid]
    agents = [
        SpecialistAgent(env, seed=seed, **{"capacity": max(sizes)} | settings | dict(changes))
        for changes in grid
        for seed in seeds
    ]
    for agent in tqdm(agents, desc="agents", disable=not progress_bar):
        agent.learn(total_timesteps)
    return agents
