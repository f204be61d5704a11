"""Balancing a double pendulum: one linear expert, five, a network, and TRPO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pinfactory import paper
from pinfactory.experiments.balancing import ID
from pinfactory.experiments.experiment import Measure, Presets, Results, without
from pinfactory.experiments.methods import (
    LITERAL,
    Method,
    by_method,
    choose_pieces,
    compare_methods,
)
from pinfactory.experiments.style import GREY, PALETTE, headline, new_figure, over_seeds, tidy
from pinfactory.plotting import expert_colours

from ._rl import draw_curves, first_above, label_steps, train
from ._rl_trpo import train_trpo

TITLE = "Balancing a double pendulum with linear experts"
PLACE = "Section 4.3, Figure 6"
ABOUT = """
A cart with a double pendulum (`InvertedDoublePendulum-v5`), with the paper's β₁ = 25 and β₂ = 2.5.
As in the paper, a committee of linear experts balances it. During training the experts' information
falls and the selector's rises, towards log 3 but usually below it, with one to four experts in use
at the end. Unlike in the paper, one linear expert balances it as well: the environment only
requires balancing, for which one linear controller is enough (a linear-quadratic regulator reaches
the maximum). The swing-ups need several. β is in units of the standard deviation of the return, not
of the raw reward. With `--method both` the paper's agent (`pinfactory.paper.agent`, as many steps)
is included.
"""

SOLVED = 9300.0
LEARNING: dict[str, Any] = {
    "n_envs": 16,
    "n_steps": 64,
    # Whole episodes are 1,000 steps: beginnings, the hard part, would be rare once it balances.
    "max_episode_steps": 200,
    "batch_size": 256,
    "n_epochs": 10,
    "learning_rate": 3e-3,
    # Falls happen soon: looking far ahead, and long traces of a critic that is still rough, only
    # blur who is to blame.
    "gamma": 0.97,
    "gae_lambda": 0.8,
}
KINDS: dict[str, dict[str, Any]] = {
    "1 linear expert": {"n_experts": 1, "capacity": 5},
    "5 linear experts": {"n_experts": 5, "capacity": 5},
    "network of 2 × 64": {"n_experts": 1, "expert": "mlp", "learning_rate": 1e-3},
}
# The paper's agent with linear experts, as in its text, and with a network, as in its appendix.
PAPER: dict[str, dict[str, Any]] = {
    "1 linear expert": {"n_experts": 1, "make": paper.agent},
    "5 linear experts": {"n_experts": 5, "make": paper.agent},
    "5 networks of 2 × 32": {"n_experts": 5, "expert": "mlp", "make": paper.agent},
}
TRPO = "TRPO"
WHEN = {"best": "best kept", "final": "at the end"}


@dataclass(frozen=True)
class Settings(Presets):
    """How long everybody learns, and what information costs.

    One lost start in a hundred costs a mean of 93: few episodes cannot tell 9,300 from less, nor
    who was best.
    """

    method: Method = "ours"
    seeds: int = 10
    total: int = 200_000
    reports: int = 20
    n_episodes: int = 100
    n_judged: int = 500
    beta_selector: float = 25.0
    beta_expert: float = 2.5
    trpo_seeds: int = 10

    # Two seeds, and no TRPO, which alone would take minutes.
    QUICK: ClassVar[Mapping[str, Any]] = {
        "seeds": 2,
        "total": 120_000,
        "reports": 8,
        "n_episodes": 50,
        "trpo_seeds": 0,
    }


def pieces(settings: Settings) -> dict[str, Callable[[], Any]]:
    """Return one piece for each kind of agent and seed."""
    own = without(settings, "method", "seeds", "trpo_seeds")
    prices = {"beta_selector": settings.beta_selector, "beta_expert": settings.beta_expert}
    ours, literal = (
        {
            f"{kind}, seed {seed}": partial(_learn, own, kind, seed, how)
            for kind, how in kinds.items()
            for seed in range(settings.seeds)
        }
        for kinds in ({kind: LEARNING | prices | how for kind, how in KINDS.items()}, PAPER)
    )
    theirs: dict[str, Callable[[], Any]] = {
        f"{TRPO}, seed {seed}": partial(_trpo, own, seed) for seed in range(settings.trpo_seeds)
    }
    return choose_pieces(settings.method, ours | theirs, literal)


def _learn(settings: Settings, kind: str, seed: int, how: Mapping[str, Any]) -> dict[str, Any]:
    _, curves = train(ID, settings.total, seed=seed, **_episodes(settings), **how)
    return {**curves, "kind": kind}


def _trpo(settings: Settings, seed: int) -> dict[str, Any]:
    return {**train_trpo(settings.total, seed, **_episodes(settings)), "kind": TRPO}


def _episodes(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in ("reports", "n_episodes", "n_judged")}


def _groups(results: Results) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = {}
    for suffix, pieces in by_method(results).items():
        for piece in pieces.values():
            if "missing" not in piece:
                groups.setdefault(f"{piece['kind']}{suffix}", []).append(piece)
    return groups


@compare_methods
def measures(results: Results) -> list[Measure]:
    """Return shares of seeds that balance, steps until they do, and returns."""
    rows = []
    for kind, found in _groups(results).items():
        reached = np.array([first_above(piece, SOLVED) for piece in found])
        target = 0.9 if kind == "5 linear experts" else None
        for when, goal in (("best", target), ("final", None)):
            share = float(np.mean([piece[f"{when}_deterministic"] >= SOLVED for piece in found]))
            name = f"share of seeds with at least 9,300, {WHEN[when]}, {kind}"
            rows.append(Measure(name, share, target=goal))
        if np.isfinite(np.median(reached)):
            middle = float(np.median(reached))
            name = f"steps to the first 9,300, median, {kind}"
            rows.append(Measure(name, middle, higher_is_better=False))
        for how in ("deterministic", "stochastic"):
            values = [piece[f"best_{how}"] for piece in found]
            rows.append(Measure.over(f"return, {how}, {kind}", values))
        if not kind.startswith("5"):
            continue
        for bits, name in (("selector_bits", "I(S;M)"), ("expert_bits", "I(S;A|M)")):
            for report, label in ((0, "at the first report"), (-1, "at the end")):
                values = [piece[bits][report] for piece in found]
                rows.append(Measure.over(f"{name} in bits, {label}, {kind}", values))
        values = [piece["effective_experts"] for piece in found]
        rows.append(Measure.over(f"experts in use, 2^H(M), {kind}", values))
    return rows


def draw(results: Results) -> Figure:
    """Draw returns, bits, and the priors of the experts."""
    groups = _groups(results)
    shown_of = over_seeds("median and range", max(map(len, groups.values())))
    figure = new_figure(15.0, 8.6)
    top, bottom = figure.subplots(2, 3)
    for axes, name, title, unit in (
        (top[0], "deterministic", "Return, deterministic", "return"),
        (top[1], "stochastic", "Return, stochastic", "return"),
        (top[2], "selector_bits", "I(S;M), the selector", "bits"),
        (bottom[0], "expert_bits", "I(S;A|M), the experts", "bits"),
    ):
        for colour, (kind, found) in zip(PALETTE, groups.items(), strict=False):
            if name in found[0]:  # TRPO has no bits
                draw_curves(axes, found, name, colour, kind)
        label_steps(axes)
        axes.set(ylabel=unit)
        headline(axes, title, shown_of if unit == "bits" else f"{shown_of}; dotted: 9,300 of 9,360")
        tidy(axes)
    for axes in top[:2]:
        axes.axhline(SOLVED, color=GREY, lw=1.0, ls=":")
    top[0].legend(frameon=False)
    if TRPO not in groups:
        missing = any("missing" in piece for piece in results.values())
        why = "sb3-contrib is not installed" if missing else "not run in this preset"
        top[1].text(0.98, 0.03, f"TRPO: {why}", ha="right", color=GREY, transform=top[1].transAxes)
    top[2].axhline(np.log2(3.0), color=GREY, lw=1.0, ls=":")
    place = {"transform": top[2].get_yaxis_transform(), "va": "bottom", "fontsize": 9}
    top[2].text(0.02, np.log2(3.0), "log 3, as in the paper", color=GREY, **place)
    found = groups.get("5 linear experts") or groups[f"5 linear experts{LITERAL}"]
    shown = found[int(np.argsort([p["final_deterministic"] for p in found])[len(found) // 2])]
    _draw_shares(bottom[1], shown)
    _draw_action_priors(bottom[2], shown)
    return figure


def _draw_shares(axes: Axes, piece: Mapping[str, Any]) -> None:
    prior = np.asarray(piece["prior"])
    axes.stackplot(piece["steps"], prior.T, colors=list(expert_colours(prior.shape[1])), lw=0)
    label_steps(axes)
    axes.set(ylabel="p(m)", ylim=(0, 1))
    headline(axes, "Prior of each expert, p(m)", "5 linear experts, a middling seed")
    tidy(axes)


def _draw_action_priors(axes: Axes, piece: Mapping[str, Any]) -> None:
    priors, share = np.asarray(piece["action_priors"]), np.asarray(piece["responsibility"])
    for expert, (colour, (low, middle, high)) in enumerate(
        zip(expert_colours(len(priors)), priors, strict=True)
    ):
        faint = 1.0 if share[expert] > 0.02 else 0.3
        axes.plot([low, high], [expert, expert], color=colour, lw=5.0, alpha=faint)
        axes.plot(middle, expert, "o", color=colour, ms=10.0, alpha=faint)
    axes.set_yticks(range(len(priors)), [f"{m}: {s:.0%}" for m, s in enumerate(share)])
    axes.set(xlim=(-1, 1), xlabel="force", ylabel="expert: share of time")
    axes.set_xticks((-1.0, -0.5, 0.0, 0.5, 1.0))
    headline(axes, "What each expert does, p(a|m)", "mean and one deviation; faint: not in use")
    tidy(axes)
