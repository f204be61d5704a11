"""Several agents that differ in seeds or settings."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from pinfactory.callbacks import Callbacks, as_callbacks

from .agent import SpecialistAgent


def train_agents(
    env: Any,
    total_timesteps: int,
    *,
    seeds: Sequence[int] = (0,),
    grid: Sequence[Mapping[str, Any]] = ({},),
    callbacks: Callbacks = None,
    make_callbacks: Callable[[SpecialistAgent], Callbacks] | None = None,
    tensorboard_log: str | Path | None = None,
    checkpoint: str | Path | None = None,
    report_every: int = 20_000,
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
        An agent for each.
    grid
        Settings in which agents differ, such as `{"beta_selector": 5.0}` or `{"n_experts": 2}`.
        β, learning rate, discount, `hold` and the number of experts do not compile anew.
    callbacks
        As of `learn`; every agent starts them again.
    make_callbacks
        Returns further callbacks for an agent, such as its `EvalCallback`.
    tensorboard_log, checkpoint
        Directories that get logs `agent_0` … and checkpoints `agent_0.pin` … of the agents.
    report_every, progress_bar
        As of `learn`; the bar counts agents.

    Returns
    -------
    list of SpecialistAgent
        Seed by seed for the first entry of the grid, then for the next.
    """
    default = inspect.signature(SpecialistAgent).parameters["n_experts"].default
    sizes = [each.get("n_experts", settings.get("n_experts", default)) for each in grid]
    shared = {"capacity": max(sizes)} | settings
    chosen = [{**shared, **changes, "seed": seed} for changes in grid for seed in seeds]
    agents = []
    for number, own in enumerate(tqdm(chosen, desc="agents", disable=not progress_bar)):
        name = f"agent_{number}"
        log = None if tensorboard_log is None else Path(tensorboard_log) / name
        agent = SpecialistAgent(env, tensorboard_log=log, **own)
        further = None if make_callbacks is None else make_callbacks(agent)
        agent.learn(
            total_timesteps,
            [*as_callbacks(callbacks), *as_callbacks(further)],
            checkpoint=None if checkpoint is None else Path(checkpoint) / f"{name}.pin",
            report_every=report_every,
        )
        agents.append(agent)
    return agents
