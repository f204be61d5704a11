"""The paper's agents: Sections 3.3 and 4.3, and Algorithm 2 of Section 5.2."""

from typing import Any

from pinfactory.rl import SpecialistAgent
from pinfactory.rl.meta import MetaSpecialistAgent, TaskFamily


def agent(env: Any, n_experts: int = 5, expert: str = "linear", **changes: Any) -> SpecialistAgent:
    """Return an agent that learns by the advantage actor–critic of Section 3.3, as printed.

    Selector and experts follow policy gradients with one-step advantages on the free energy

        f(x, m, a) = r(x, a) − 1/β₂ log p(a|x,m)/p(a|m)

    of the sampled expert and action, the selector less 1/β₁ log p(m|x)/p(m) as well; each has a
    critic that regresses the discounted sum of all f that follow. Rewards, observations, advantages
    and gradients are what they are, β is a price in units of the reward, actions are not squashed.

    Parameters
    ----------
    env
        As of `SpecialistAgent`.
    n_experts
        Five in the paper, or one.
    expert
        `"linear"` as in Section 4.3, or `"mlp"` for the two-layer tanh networks of the appendix.
    **changes
        Other settings of `SpecialistAgent`. `critic="printed"` takes the selector's advantage from
        the critic of the expert who acted, Ā(x, m) = E[A_m(x, a)]. If that critic is right this is
        zero for every expert, so that the selector learns nothing from it; the default,
        `critic="paper"`, takes it from the selector's own critic, as Section 3.3.1 describes it.

    Notes
    -----
    Where the paper is silent: γ = 0.99, momenta 0.99, one environment, 1,024 steps between two
    rounds of gradient steps (the appendix samples "1024 data") in minibatches of 32. Widths of the
    experts' and critics' layers are those of the selector. Adam's other settings are its defaults.

    Examples
    --------
    >>> from pinfactory import paper
    >>> paper.agent("CartPole-v1", n_experts=2, n_steps=64).learn(64).num_timesteps
    64
    """
    settings: dict[str, Any] = {
        "expert_hidden": (32, 32),
        "selector_hidden": (32, 32),
        "critic_hidden": (32, 32),
        "beta_selector": 25.0,
        "beta_expert": 2.5,
        "momentum_selector": 0.99,
        "momentum_expert": 0.99,
        "learning_rate": 3e-4,
        "final_learning_rate": 3e-4,
        "max_grad_norm": None,
        "batch_size": 32,
        "n_envs": 1,
        "n_steps": 1024,
        "gamma": 0.99,
        "critic": "paper",
        "update": "plain",
        "expectation": "sampled",
        "units": "reward",
        "normalise": False,
        "squash": False,
    }
    return SpecialistAgent(env, n_experts, expert, **settings | changes)


def meta_agent(family: TaskFamily, n_experts: int = 16, **changes: Any) -> MetaSpecialistAgent:
    """Return an agent that learns by Algorithm 2, as printed.

    One expert, drawn from p(m), acts for the first L steps of an episode; an IndRNN of 200 units
    reads them and chooses the expert for all that follow. Experts learn on 64 tasks by the rule of
    `agent`, the selector by the policy gradient of their discounted free energy on 64 other tasks
    drawn alike, less the value of its recurrent critic. Actions are Gaussian and not squashed.

    Parameters
    ----------
    family
        As of `MetaSpecialistAgent`.
    n_experts
        All of them begin; none is split.
    **changes
        Other settings of `MetaSpecialistAgent`.

    Notes
    -----
    Where the paper is silent: L = 10 steps (`probe_steps`), γ = 0.99, momenta 0.99, K = 1 roll-out
    of 1,000 steps in each task, which goes on in a new episode of the same task when one has ended,
    and one gradient step for all of them. The transitions hold s′ − s in place of s′, which says
    the same, and the number of a step is its place in the sequence. f̄ is measured on the second
    set of tasks, as the text says, not on the first, as the formula does.

    Examples
    --------
    >>> from pinfactory import paper
    >>> from pinfactory.rl.meta import pendulum_tasks
    >>> agent = paper.meta_agent(pendulum_tasks(), 2, n_tasks=2, n_steps=16, selector_units=8)
    >>> agent.learn(1).num_timesteps
    104
    """
    settings: dict[str, Any] = {
        "expert_hidden": (64, 64),
        "critic_hidden": (64, 64),
        "selector_units": 200,
        "selector_cell": "indrnn",
        "beta_selector": 25.0,
        "beta_expert": 2.5,
        "momentum_selector": 0.99,
        "momentum_expert": 0.99,
        "learning_rate": 1e-4,
        "critic_learning_rate": 1e-3,
        "selector_learning_rate": 1e-4,
        "n_tasks": 64,
        "n_steps": 1000,
        "gamma": 0.99,
        "balance_coef": 0.0,
        "n_initial_experts": n_experts,
        "update": "plain",
        "squash": False,
        "probe": "expert",
        "probe_steps": 10,
    }
    settings |= changes
    # One gradient step sees all steps of all tasks.
    whole = {"batch_size": settings["n_tasks"] * settings["n_steps"]}
    return MetaSpecialistAgent(family, n_experts, **whole | settings)
