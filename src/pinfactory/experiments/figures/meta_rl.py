"""Double pendulums never met before: what 1 to 16 experts make of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from pinfactory import paper
from pinfactory.baselines.rl_gradient import MAMLPolicy, ProMP
from pinfactory.baselines.rl_model import GrBAL
from pinfactory.experiments.controls import split_controls
from pinfactory.experiments.controls.agents import META_AGENT_CONTROLS, meta_agent_control
from pinfactory.experiments.controls.sizes import n_parameters
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.rl.meta import (
    MetaEvaluation,
    MetaSpecialistAgent,
    ParameterFamily,
    double_pendulum_new_tasks,
    double_pendulum_tasks,
)
from pinfactory.rl.meta.display import task_shares

from ._meta_rl_pictures import (
    SHOWN,
    agents_of,
    baselines_of,
    controls_of,
    draw_agents,
    mean_of,
)

TITLE = "The right controller for a body never met before"
PLACE = "Section 6.3, Figure 10"
ABOUT = """
Every task is a cart with a double pendulum of its own: gravity, motor gain, a constant push of the
motor, start, reward, and the sign of the motor, which is inverted in half of them. T is what agents
learn from, T′ (stronger gravity, farther starts) what they are judged by, before and after more
iterations on tasks of T′. The selector sees two transitions under a small push to and fro and
chooses an expert for the rest of the episode. Two experts begin and divide until there are enough.
MAML, ProMP and GrBAL stand beside it, the last not in the quick version. MAML and ProMP had as many
environment steps, GrBAL, whose planning takes long, fewer. Their small square is the return before
any adaptation, their large one that after one gradient step (GrBAL: adapting at every step). In the
paper's setting an episode has 1,000 steps and a return of about 9,400 at best. With `--method both`
Algorithm 2 as printed (`pinfactory.paper.meta_agent`, as many steps) stands beside it in the table.
Controls are eight experts without prices (β → ∞), and one network with as many parameters as these
experts and their selector together.
"""

BASELINES: dict[str, Any] = {"MAML": MAMLPolicy, "ProMP": ProMP, "GrBAL": GrBAL}
# The best of two or three settings on the double pendulums, with a seed that is not used again.
TUNED: dict[str, dict[str, Any]] = {
    "MAML": {"learning_rate": 1e-2},
    "ProMP": {"learning_rate": 3e-3},
    "GrBAL": {"inner_rate": 0.2},
}


@dataclass(frozen=True)
class Settings(Presets):
    """Numbers of experts, and how long to learn.

    Attributes
    ----------
    iterations
        Of agents, MAML and ProMP, with `n_tasks` tasks each for experts and for the selector.
    model_iterations
        Of GrBAL, with a quarter of the tasks.
    updates
        Iterations on T′ before agents are judged again.
    n_judged
        New tasks that agents are judged by.
    """

    method: Method = "ours"
    seeds: int = 3
    n_experts: tuple[int, ...] = (1, 2, 4, 8, 16)
    iterations: int = 250
    model_iterations: int = 30
    updates: int = 100
    n_tasks: int = 64
    n_steps: int = 128
    n_judged: int = 512
    max_steps: int = 1000
    baselines: tuple[str, ...] = ("MAML", "ProMP", "GrBAL")
    controls: tuple[str, ...] = META_AGENT_CONTROLS

    # Few experts, little training and no planning.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "n_experts": (1, 2, 4),
        "iterations": 40,
        "updates": 20,
        "n_tasks": 32,
        "max_steps": 500,
        "baselines": ("MAML", "ProMP"),
        "controls": ("without prices",),
    }

    @property
    def families(self) -> tuple[ParameterFamily, ParameterFamily]:
        """Return T and T′."""
        return double_pendulum_tasks(self.max_steps), double_pendulum_new_tasks(self.max_steps)


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for each training."""
    own = without(settings, "method", "seeds", "baselines", "controls")
    ours, theirs = (
        {
            f"{n} experts, seed {seed}": partial(_agent, own, n, seed, literal)
            for seed in range(settings.seeds)
            for n in settings.n_experts
        }
        for literal in (False, True)
    )
    baselines = {
        f"{name}, seed {seed}": partial(_baseline, without(own, "n_experts"), name, seed)
        for seed in range(settings.seeds)
        for name in settings.baselines
    }
    controls = {
        f"control: {name}, seed {seed}": partial(_control, own, _most(settings), name, seed)
        for seed in range(settings.seeds)
        for name in settings.controls
    }
    return choose_pieces(settings.method, ours | baselines | controls, theirs)


def _most(settings: Settings) -> int:
    """Return how many experts controls stand beside."""
    return 8 if 8 in settings.n_experts else max(settings.n_experts)


def _agent(settings: Settings, n_experts: int, seed: int, literal: bool) -> dict[str, Any]:
    """Train our agent or the paper's; judge it on T, and on T′ before and after more updates."""
    old, _ = settings.families
    shared: dict[str, Any] = {"n_tasks": settings.n_tasks, "seed": seed}
    if literal:  # it plays whole episodes, and takes as many steps in all
        agent = paper.meta_agent(old, n_experts, n_steps=settings.max_steps, **shared)
        iterations = max(1, settings.iterations * settings.n_steps // settings.max_steps)
    else:
        shared |= {"n_steps": settings.n_steps, "capacity": max(settings.n_experts)}
        agent, iterations = MetaSpecialistAgent(old, n_experts, **shared), settings.iterations
    judged = _learn(settings, agent, iterations)
    information = agent.information_
    responsibilities, tasks = judged["T"].responsibilities, judged["T"].tasks
    partition = {}
    for name in SHOWN:
        middles, shares = task_shares(tasks[name], responsibilities)
        partition[name] = {"middle": middles, "shares": shares.round(4).tolist()}
    per_iteration = agent.num_timesteps // iterations
    return {
        "n_experts": n_experts,
        "steps": agent.num_timesteps,
        "curve": [
            [p.step * per_iteration, float(p.info.episode_return[0])]
            for p in agent.history_
            if np.isfinite(p.info.episode_return[0])
        ],
        "returns": {name: played.deterministic.mean for name, played in judged.items()},
        "selector_bits": information.selector,
        "expert_bits": information.experts,
        "sign_bits": information.about["control_sign"],
        "effective_experts": information.effective_experts,
        "partition": partition,
    }


def _learn(
    settings: Settings, agent: MetaSpecialistAgent, iterations: int
) -> dict[str, MetaEvaluation]:
    """Train an agent; judge it on T, and on T′ before and after more updates."""
    agent.learn(iterations, report_every=max(1, min(20, iterations // 5)))
    old, new = settings.families
    how: dict[str, Any] = {"n_tasks": settings.n_judged, "seed": 0}
    return {
        "T": agent.evaluate(old, **how),
        "T′": agent.evaluate(new, **how),
        "T′ after": agent.evaluate(new, updates=settings.updates, **how),
    }


def _control(settings: Settings, n_experts: int, name: str, seed: int) -> dict[str, Any]:
    """Train a control of so many experts."""
    shared = {"n_tasks": settings.n_tasks, "n_steps": settings.n_steps, "seed": seed}
    agent = meta_agent_control(name, settings.families[0], n_experts, shared)
    judged = _learn(settings, agent, settings.iterations)
    hierarchy = agent.state_.policy.hierarchy
    return {
        "control": name,
        "n_experts": n_experts,
        "n_parameters": n_parameters(hierarchy if agent.n_experts > 1 else hierarchy.experts),
        "returns": {where: played.deterministic.mean for where, played in judged.items()},
    }


def _baseline(settings: Settings, name: str, seed: int) -> dict[str, Any]:
    """Train a baseline, and judge it before and after it adapts to a task."""
    old, new = settings.families
    learner: Any
    before: dict[str, Any]
    after: dict[str, Any]
    if name == "GrBAL":
        n_tasks = max(1, settings.n_tasks // 4)
        learner = GrBAL(old, n_tasks=n_tasks, n_steps=settings.n_steps, seed=seed, **TUNED[name])
        learner.learn(settings.model_iterations)
        before, after = ({"adapting": sure} for sure in (False, True))
    else:
        learner = BASELINES[name](
            old, n_tasks=settings.n_tasks, n_steps=settings.n_steps, seed=seed, **TUNED[name]
        )
        learner.learn(settings.iterations)
        before, after = {"steps": 0}, {"steps": 1}
    returns = {}
    for place, family in (("T", old), ("T′", new)):
        for moment, how in (("before", before), ("after", after)):
            played = learner.evaluate(family, n_tasks=min(settings.n_judged, 64), **how)
            returns[f"{place} {moment}"] = played.mean
    return {"baseline": name, "steps": learner.num_timesteps, "returns": returns}


def draw(results: Results) -> Figure:
    """Draw our method if it was run, else the paper's; the table has both."""
    results, controls = split_controls(results)
    return draw_agents(next(iter(by_method(results).values())), controls_of(controls))


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return what the sign of the motor tells, returns, and what experts gain over one and all."""
    results, controls = split_controls(results)
    rows = []
    for n, runs in agents_of(results).items():
        rows += [
            Measure(f"return on {where}, {n} experts", *mean_of(r["returns"][where] for r in runs))
            for where in ("T", "T′", "T′ after")
        ]
        if n > 1:
            bits = mean_of(r["sign_bits"] for r in runs)
            rows.append(Measure(f"I(sign; M) in bits, {n} experts", *bits, target=0.9))
    for name, runs in baselines_of(results).items():
        rows += [
            Measure(f"return on {where}, {name}", *mean_of(r["returns"][where] for r in runs))
            for where in ("T before", "T after", "T′ before", "T′ after")
        ]
    for name, runs in controls_of(controls).items():
        rows += [
            Measure.over(f"return on {where}, control: {name}", [r["returns"][where] for r in runs])
            for where in ("T", "T′", "T′ after")
        ]
        rows.append(Measure(f"parameters, control: {name}", float(runs[0]["n_parameters"])))
    return rows + _gains(results)


def _gains(results: Results) -> list[Measure]:
    """Return by how much error bars are apart: many experts from one, and from the baselines."""
    agents, baselines = agents_of(results), baselines_of(results)
    most = 8 if 8 in agents else max(agents)
    rows = []
    if most > 1 and 1 in agents:
        for where in ("T", "T′"):
            (high, up), (low, down) = (
                mean_of(r["returns"][where] for r in agents[n]) for n in (most, 1)
            )
            gap = high - (up or 0.0) - low - (down or 0.0)
            name = f"gap between error bars of {most} experts and of 1, {where}"
            rows.append(Measure(name, gap, target=0.0))
    if baselines:
        for where, moment in (("T", "before"), ("T′", "before"), ("T", "after"), ("T′", "after")):
            best = max(
                mean_of(r["returns"][f"{where} {moment}"] for r in runs)[0]
                for runs in baselines.values()
            )
            # On T an agent needs no adaptation; on T′ it is judged after its updates.
            ours = "T′ after" if (where, moment) == ("T′", "after") else where
            lead = mean_of(r["returns"][ours] for r in agents[most])[0] - best
            name = f"{most} experts less the best baseline {moment} adaptation, {where}"
            rows.append(Measure(name, lead, target=0.0))
    return rows
