"""Swinging up: where one linear controller is not enough."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory import paper
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import Method, by_method, choose_pieces, compare_methods
from pinfactory.experiments.style import GREY, PALETTE, headline, new_figure, over_seeds, tidy
from pinfactory.plotting import expert_colours
from pinfactory.rl import SpecialistAgent, envs

from ._rl import WHOLE, draw_curves, label_steps, train
from ._rl_starts import BACKWARD, Phase, starts

TITLE = "Swinging up with linear experts"
PLACE = "Section 4.3"
ABOUT = """
The paper's text describes a swing-up, its environment only balances. These are real swing-ups: the
pendulum (`Pendulum-v1`), the pole on a cart, and the double pendulum on a cart, learned by one
linear expert, by committees of linear experts, and by one network. One linear controller cannot
swing the pendulum up and hold it, a committee of two can. On the cart the committee's gain may be
in learning as much as in what can be represented, though a direct search for a single clipped
linear controller finds none that solves it either. The double pendulum is learned backward:
episodes start around upright first, then ever farther away, and at last hanging; the curves are
always of episodes that start hanging. On the right is who acts where: each dot is a state in the
colour of the responsible expert, and the bars tell how much each expert acts, with the pole up and
on the way there. For the pendulum and the pole on a cart that is drawn for experts who act for five
steps once they are chosen: a selector that chooses anew at every step makes experts that push to
either side, and does the rest by alternating between them. With `--method both` the paper's agent
to the letter learns the same tasks from as many steps; its episodes always start hanging.
"""


def _pendulum(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arctan2(x[:, 1], x[:, 0]), x[:, 2], x[:, 0] > np.cos(np.pi / 6)


def _cart_pole(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arctan2(x[:, 1], x[:, 2]), x[:, 4], x[:, 2] > np.cos(np.pi / 6)


def _double(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lower = np.arctan2(x[:, 1], x[:, 3])
    upper = np.angle(np.exp(1j * (lower + np.arctan2(x[:, 2], x[:, 4]))))
    return lower, upper, 0.5 * (np.cos(lower) + np.cos(upper)) > np.cos(np.pi / 6)


ONE, HELD, EIGHT = "1 linear expert", "3 linear experts, held", "8 linear experts"
NETWORK = "network of 2 × 64"
# The paper's β₁ and β₂, except where experts have to steer for themselves for a while.
KINDS: dict[str, dict[str, Any]] = {
    ONE: {"n_experts": 1, "capacity": 5},
    "2 linear experts": {"n_experts": 2, "capacity": 5},
    "5 linear experts": {"n_experts": 5, "capacity": 5},
    HELD: {"n_experts": 3, "capacity": 5, "hold": 5, "beta_expert": 100.0},
    EIGHT: {"n_experts": 8},
    NETWORK: {"n_experts": 1, "expert": "mlp", "beta_expert": 100.0, "learning_rate": 1e-3},
}
PAPER = {ONE: {"n_experts": 1}, "5 linear experts": {"n_experts": 5}}
N_ENVS = 64
USUAL = tuple(kind for kind in KINDS if kind != EIGHT)


class Task(NamedTuple):
    """A swing-up: its environment, what a solved one returns, who learns it, and how."""

    title: str
    env: Callable[[], envs.Env]
    solved: float
    learning: dict[str, Any]
    view: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    labels: tuple[str, str]
    kinds: tuple[str, ...] = USUAL
    phases: tuple[Phase, ...] = ()


TASKS = {
    "pendulum": Task(
        "Pendulum",
        envs.Pendulum,
        -200.0,
        {"gamma": 0.95, "learning_rate": 3e-3},
        _pendulum,
        ("angle from upright", "velocity"),
    ),
    "cart-pole": Task(
        "Pole on a cart",
        envs.CartPoleSwingUp,
        350.0,
        {"gamma": 0.99, "learning_rate": 2e-3},
        _cart_pole,
        ("angle from upright", "velocity"),
    ),
    "double pendulum": Task(
        "Double pendulum on a cart",
        envs.DoublePendulumSwingUp,
        350.0,
        {
            "gamma": 0.99,
            "learning_rate": 3e-3,
            "selector_hidden": (64, 64),
            # Short episodes keep starts among what is learned from; most fall soon after.
            "max_episode_steps": 100,
        },
        _double,
        ("lower pole's angle from upright", "upper pole's angle"),
        (ONE, EIGHT, NETWORK),
        BACKWARD,
    ),
}


@dataclass(frozen=True)
class Settings(Presets):
    """Tasks, kinds of agents, and how long they learn."""

    method: Method = "ours"
    seeds: int = 10
    tasks: tuple[str, ...] = tuple(TASKS)
    kinds: tuple[str, ...] = tuple(KINDS)
    steps: tuple[int, ...] = (614_400, 1_024_000, 3_000_000)
    reports: int = 20

    # One seed of the pendulum alone.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 1,
        "tasks": ("pendulum",),
        "kinds": (ONE, "2 linear experts", HELD),
        "steps": (614_400,),
        "reports": 8,
    }


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for each task, kind of agent and seed."""
    own = without(settings, "method", "tasks", "steps", "kinds", "seeds")
    runs = [
        (task, total, seed)
        for task, total in zip(settings.tasks, settings.steps, strict=True)
        for seed in range(settings.seeds)
    ]
    ours, theirs = (
        {
            f"{task}, {kind}, seed {seed}": partial(_learn, own, task, total, kind, seed, literal)
            for task, total, seed in runs
            for kind in (PAPER if literal else settings.kinds)
            if literal or kind in TASKS[task].kinds
        }
        for literal in (False, True)
    )
    return choose_pieces(settings.method, ours, theirs)


def learn(
    name: str, kind: str, seed: int, total: int, reports: int, phases: tuple[Phase, ...]
) -> tuple[SpecialistAgent, dict[str, Any]]:
    """Return an agent that learned a task, phase by phase if there are any, and its curves."""
    task = TASKS[name]
    learning = {**task.learning, **KINDS[kind], "seed": seed}
    ways: list[tuple[Any, float]] = [(starts(phase, N_ENVS), phase.share) for phase in phases]
    return train(
        task.env(), total, reports=reports, phases=ways or WHOLE, n_envs=N_ENVS, **learning
    )


def _learn(
    settings: Settings, name: str, total: int, kind: str, seed: int, literal: bool
) -> dict[str, Any]:
    """Return curves, and who acts where."""
    task, reports = TASKS[name], settings.reports
    if literal:
        how: dict[str, Any] = {"make": paper.agent, "seed": seed, **PAPER[kind]}
        agent, curves = train(task.env(), total, reports=reports, **how)
    else:
        agent, curves = learn(name, kind, seed, total, reports, task.phases)
    states = np.asarray(agent.state_.visited.observation)[::2]
    responsible = agent.responsibilities(states)
    across, along, up = task.view(states)
    taken = responsible.sum(axis=0)
    upright = (responsible * up[:, None]).sum(axis=0) / np.maximum(taken, 1e-9)
    return {
        **curves,
        "task": name,
        "agent": kind,
        "view": np.stack([across, along], axis=1).round(3),
        "responsible": responsible.round(3),
        "upright": upright.round(4),
    }


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return shares of seeds that solve a task, and returns."""
    rows = []
    for (name, kind), found in _groups(results).items():
        solved = float(np.mean([_solved(piece) for piece in found]))
        targets = {} if kind in (ONE, NETWORK) else {"pendulum": 1.0, "cart-pole": 0.9}
        label = f"share of seeds that solve it, {name}, {kind}"
        rows.append(Measure(label, solved, target=targets.get(name)))
        for how in ("deterministic", "stochastic"):
            values = [piece[f"final_{how}"] for piece in found]
            rows.append(Measure.over(f"return, {how}, {name}, {kind}", values))
        used = [piece["effective_experts"] for piece in found]
        rows.append(Measure(f"effective experts, {name}, {kind}", float(np.mean(used))))
    return rows


def _solved(piece: Mapping[str, Any]) -> bool:
    level = TASKS[piece["task"]].solved
    return bool(min(piece["final_deterministic"], piece["final_stochastic"]) >= level)


def _groups(results: Results) -> dict[tuple[str, str], list[Any]]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for suffix, pieces in by_method(results).items():
        for piece in pieces.values():
            groups.setdefault((piece["task"], f"{piece['agent']}{suffix}"), []).append(piece)
    return groups


def draw(results: Results) -> Figure:
    """Draw, for every task, returns, bits, and who acts where."""
    groups = _groups(results)
    tasks = list(dict.fromkeys(name for name, _ in groups))
    figure = new_figure(18.5, 5.2 * len(tasks))
    rows = figure.subplots(len(tasks), 4, squeeze=False, width_ratios=[1.2, 1.0, 1.1, 0.9])
    for row, name in zip(rows, tasks, strict=True):
        kinds = {kind: found for (task, kind), found in groups.items() if task == name}
        _draw_returns(row[0], TASKS[name], kinds)
        _draw_bits(row[1], kinds)
        # Of the seeds that solve it, the one whose roles differ most.
        shown = max(
            kinds.get(HELD) or kinds.get(EIGHT) or list(kinds.values())[-1],
            key=lambda p: (_solved(p), np.ptp(np.asarray(p["upright"])[_busy(p)])),
        )
        _draw_partition(row[2], TASKS[name], shown)
        _draw_roles(row[3], shown)
    return figure


def _draw_returns(axes: Axes, task: Task, kinds: Mapping[str, Any]) -> None:
    for colour, (kind, found) in zip(PALETTE, kinds.items(), strict=False):
        solved = sum(map(_solved, found))
        label = f"{kind}: {solved} of {len(found)} solve it"
        draw_curves(axes, found, "stochastic", colour, label)
    axes.axhline(task.solved, color=GREY, lw=1.0, ls=":")
    label_steps(axes)
    axes.set(ylabel="return")
    # Below the axes: curves fill all of them.
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, -0.2))
    shown_of = over_seeds("median and range", max(map(len, kinds.values())))
    headline(axes, task.title, f"stochastic return: {shown_of}; dotted: solved")
    tidy(axes)


def _draw_bits(axes: Axes, kinds: Mapping[str, Any]) -> None:
    for colour, (kind, found) in zip(PALETTE, kinds.items(), strict=False):
        steps = np.asarray(found[0]["steps"])
        for name, style in (("selector_bits", "-"), ("expert_bits", "--")):
            if name == "expert_bits" or len(found[0]["upright"]) > 1:
                values = np.median([piece[name] for piece in found], axis=0)
                axes.plot(steps, values, style, color=colour, label=kind if style == "--" else None)
    label_steps(axes)
    axes.set(ylabel="bits")
    headline(axes, "Information", "solid: I(S;M) of the selector; dashed: I(S;A|M) of the experts")
    tidy(axes)


def _draw_partition(axes: Axes, task: Task, piece: Mapping[str, Any]) -> None:
    view, responsible = np.asarray(piece["view"]), np.asarray(piece["responsible"])
    colours = expert_colours(responsible.shape[1])
    axes.scatter(view[:, 0], view[:, 1], s=6.0, color=np.clip(responsible @ colours, 0, 1), lw=0)
    axes.set(xlabel=task.labels[0], ylabel=task.labels[1])
    axes.set_xticks([-np.pi, 0.0, np.pi], ["down", "up", "down"])
    headline(axes, "Who acts where", f"states of {piece['agent']}, clearest seed")
    tidy(axes)


def _busy(piece: Mapping[str, Any]) -> np.ndarray:
    return np.asarray(piece["responsibility"]) > 0.02


def _draw_roles(axes: Axes, piece: Mapping[str, Any]) -> None:
    upright, busy = np.asarray(piece["upright"]), np.flatnonzero(_busy(piece))
    share, colours = np.asarray(piece["responsibility"]), expert_colours(len(upright))
    order = busy[np.argsort(upright[busy])]
    rows, up = np.arange(len(order)), share[order] * upright[order]
    axes.barh(rows, up, color=colours[order])
    axes.barh(rows, share[order] - up, left=up, color=colours[order], alpha=0.35)
    axes.set_yticks(rows, [f"expert {m}\nup {upright[m]:.0%} of its time" for m in order])
    axes.set(xlim=(0, 1), xlabel="share of all time")
    headline(axes, "Who swings, who balances", "full colour: pole up; pale: not")
    tidy(axes)
