"""What else could explain the return of agents.

Committees in which one of the two stages can do less, or pays nothing, and one network with as many
parameters as both stages together.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pinfactory.rl import SpecialistAgent
from pinfactory.rl.meta import MetaSpecialistAgent, TaskFamily

from .sizes import NO_PRICES, dense_width, n_parameters

# How one network learns to swing up, with a price that lets it act for itself.
DENSE_NETWORK = {"expert": "mlp", "beta_expert": 100.0, "learning_rate": 1e-3}
_DENSE = "dense network"
_COMMITTEES: dict[str, dict[str, Any]] = {
    "constant experts": {"expert": "constant"},
    "linear selector": {"selector_hidden": ()},
    "without prices": NO_PRICES,
}
AGENT_CONTROLS = (*_COMMITTEES, _DENSE)
_META_AGENTS = {"without prices": NO_PRICES}
META_AGENT_CONTROLS = (*_META_AGENTS, _DENSE)


def agent_control(name: str, env: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a control of the `SpecialistAgent` with these ones."""
    if name != _DENSE:
        return {**settings, **_COMMITTEES[name]}
    policy = SpecialistAgent(env, **settings).state_.policy
    inputs, outputs = len(policy.observations.mean), policy.actions.n_outputs
    width = dense_width(inputs, outputs, n_parameters(policy.hierarchy), 2)
    one = {"n_experts": 1, "capacity": None, "expert_hidden": (width, width)}
    return {**settings, **DENSE_NETWORK, **one}


def meta_agent_control(
    name: str, family: TaskFamily, n_experts: int, settings: Mapping[str, Any]
) -> MetaSpecialistAgent:
    """Return an untrained control of a `MetaSpecialistAgent` with so many experts."""
    if name != _DENSE:
        return MetaSpecialistAgent(family, n_experts, **{**settings, **_META_AGENTS[name]})
    policy = MetaSpecialistAgent(family, n_experts, **settings).state_.policy
    inputs, outputs = len(policy.observations.mean), policy.actions.n_outputs
    width = dense_width(inputs, outputs, n_parameters(policy.hierarchy), 2)
    one = {"capacity": None, "expert_hidden": (width, width)}
    return MetaSpecialistAgent(family, 1, **{**settings, **one})


def n_agent_parameters(
    env: Any, settings: Mapping[str, Any], make: Callable[..., SpecialistAgent] = SpecialistAgent
) -> int:
    """Return the number of parameters that choose experts and actions; one needs no selector."""
    agent = make(env, **{**settings, "capacity": None})
    hierarchy = agent.state_.policy.hierarchy
    return n_parameters(hierarchy if agent.n_experts > 1 else hierarchy.experts)
