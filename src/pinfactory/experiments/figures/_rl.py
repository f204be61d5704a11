"""What the experiments with agents share: training that is measured on the way."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pinfactory.core.training import Callback, Progress, Run
from pinfactory.rl import SpecialistAgent
from pinfactory.rl.actions import BoxActions

# What is measured at every report, one list each.
CURVES = ("deterministic", "stochastic", "selector_bits", "expert_bits")
# One phase for all steps, with the environment's own parameters.
WHOLE: tuple[tuple[Any, float], ...] = ((None, 1.0),)


class Record(Callback):
    """Evaluates an agent at every report, writes down its bits and priors, and keeps the best.

    The best is the one with the largest deterministic return, and of several the one with the
    largest stochastic return, in the environment that the agent is in when this is made.
    """

    def __init__(self, agent: SpecialistAgent, n_episodes: int) -> None:
        self.agent, self.n_episodes = agent, n_episodes
        self.play = agent.backend.play
        self.curves: dict[str, list[Any]] = {name: [] for name in (*CURVES, "steps", "prior")}
        self.best, self._highest = agent.state_.policy, (-np.inf, -np.inf)

    def chunk(self, progress: Progress, run: Run) -> None:
        curves, prior = self.curves, self.agent.state_.priors.stages[0].family
        curves["steps"].append(progress.step)
        for name, sure in (("deterministic", True), ("stochastic", False)):
            episodes = self.play(self.agent.state_.policy, self.n_episodes, sure, seed=0)
            curves[name].append(float(np.mean(episodes.returns)))
        if (now := (curves["deterministic"][-1], curves["stochastic"][-1])) > self._highest:
            self.best, self._highest = self.agent.state_.policy, now
        information = self.agent.information_
        curves["selector_bits"].append(information.selector)
        curves["expert_bits"].append(information.experts)
        shares = np.asarray(prior.probs)[: self.agent.n_experts]  # type: ignore[attr-defined]
        curves["prior"].append(shares.round(4))


def train(
    env: Any,
    total: int,
    *,
    reports: int,
    n_episodes: int = 20,
    n_judged: int = 100,
    phases: Sequence[tuple[Any, float]] = WHOLE,
    make: Callable[..., SpecialistAgent] = SpecialistAgent,
    **settings: Any,
) -> tuple[SpecialistAgent, dict[str, Any]]:
    """Train an agent; return it with curves over training and the returns of new episodes.

    The latter are of the agent at the end (`final_…`), and when it was best (`best_…`), in
    `n_judged` episodes other than the `n_episodes` that tell which one was best. `phases` are
    parameters of the environment to learn with, and their shares of all steps; it is judged with
    the default ones. `make` builds the agent, such as `pinfactory.paper.agent`.
    """
    agent = make(env, **settings)
    record = Record(agent, n_episodes)
    for params, share in phases:
        agent.set_env(env, params)
        agent.learn(round(share * total), record, report_every=-(-total // reports))
    judged = {
        f"{when}_{how}": float(np.mean(record.play(policy, n_judged, sure, seed=1).returns))
        for when, policy in (("final", agent.state_.policy), ("best", record.best))
        for how, sure in (("deterministic", True), ("stochastic", False))
    }
    information = agent.information_
    return agent, {
        **record.curves,
        **judged,
        "effective_experts": information.effective_experts,
        "responsibility": information.responsibility.round(4),
        "action_priors": action_priors(agent),
    }


def action_priors(agent: SpecialistAgent) -> list[list[float]]:
    """Return low, middle and high of p(a|m) for every expert of box actions with one number."""
    actions = agent.state_.policy.actions
    if not isinstance(actions, BoxActions) or len(actions.low) > 1:
        return []
    prior: Any = agent.state_.priors.stages[1].family
    mean, scale = np.asarray(prior.mean)[:, 0], np.asarray(prior.scale)[:, 0]
    ends = np.stack([mean - scale, mean, mean + scale], axis=1)[: agent.n_experts]
    return np.asarray(actions.to_env(jnp.asarray(ends)[..., None]))[..., 0].round(4).tolist()


def first_above(piece: Mapping[str, Any], level: float) -> float:
    """Return the environment steps after which the deterministic return first reaches a level."""
    reached = np.flatnonzero(np.asarray(piece["deterministic"]) >= level)
    return float(piece["steps"][reached[0]]) if len(reached) else float("inf")


def draw_curves(
    axes: Axes, pieces: Sequence[Mapping[str, Any]], name: str, colour: str, label: str
) -> None:
    """Draw the median over seeds, and the range from the worst to the best."""
    shortest = min(len(piece["steps"]) for piece in pieces)
    steps = np.asarray(pieces[0]["steps"][:shortest])
    values = np.array([piece[name][:shortest] for piece in pieces])
    axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
    axes.plot(steps, np.median(values, axis=0), color=colour, lw=2.0, label=label)


def label_steps(axes: Axes) -> None:
    """Write environment steps below axes, in thousands."""
    axes.set_xlabel("environment steps, thousands")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}")
