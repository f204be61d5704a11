"""Several agents that differ in seeds or settings."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from pinfactory.callbacks import Callbacks
from pinfactory.sweep.running import gather

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
    jobs: int | None = None,
    scheduler: Any = None,
    progress_bar: bool = False,
    **settings: Any,
) -> list[SpecialistAgent]:
    """Train an agent for every entry of `grid` and every seed, with one compiled program.

    They train one after the other in this process, or one in each of several processes. A single
    agent nearly fills a core: side by side in one program they would be little faster, and every
    number of replicas would need a program of its own.

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
    report_every
        As of `learn`.
    jobs
        Number of local processes; all is done in this one by default. In others callbacks are
        copies: what they gather stays there, and `history_` comes back with the agents.
    scheduler
        A Dask scheduler, or an executor of `concurrent.futures`, as of `pinfactory.sweep.sweep`.
    progress_bar
        Whether to show one; it counts agents.

    Returns
    -------
    list of SpecialistAgent
        Seed by seed for the first entry of the grid, then for the next.
    """
    if not isinstance(grid, Sequence) or not all(isinstance(each, Mapping) for each in grid):
        raise ValueError(
            "`grid` must be a sequence of mappings from settings to values, such as "
            f"[{{'beta_selector': 5.0}}], but got {grid!r}."
        )
    if not isinstance(seeds, Sequence | np.ndarray) or isinstance(seeds, str):
        raise ValueError(f"`seeds` must be a sequence of seeds, but got {seeds!r}.")
    n_experts = settings.get("n_experts", SpecialistAgent.n_experts)
    sizes = [each.get("n_experts", n_experts) for each in grid]
    shared = {"capacity": max(sizes, default=n_experts)} | settings
    chosen = [{**shared, **changes, "seed": seed} for changes in grid for seed in seeds]
    names = [f"agent_{n}" for n in range(len(chosen))]
    logs = [None if tensorboard_log is None else Path(tensorboard_log, name) for name in names]
    files = [None if checkpoint is None else Path(checkpoint, f"{name}.pin") for name in names]
    training = partial(
        _train,
        env,
        make_callbacks,
        callbacks,
        total_timesteps=total_timesteps,
        report_every=report_every,
    )
    tasks = list(zip(chosen, logs, files, strict=True))
    if jobs is None and scheduler is None:
        return [training(task) for task in tqdm(tasks, desc="agents", disable=not progress_bar)]
    return gather(training, tasks, jobs=jobs, scheduler=scheduler, verbose=progress_bar)


def _train(
    env: Any,
    make_callbacks: Callable[[SpecialistAgent], Callbacks] | None,
    callbacks: Callbacks,
    task: tuple[dict[str, Any], Path | None, Path | None],
    **learning: Any,
) -> SpecialistAgent:
    """Train an agent, given its settings, its folder of logs and its checkpoint."""
    settings, log, checkpoint = task
    agent = SpecialistAgent(env, tensorboard_log=log, **settings)
    further = None if make_callbacks is None else make_callbacks(agent)
    return agent.learn(callbacks=[callbacks, further], checkpoint=checkpoint, **learning)
