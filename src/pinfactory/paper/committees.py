"""Classification and regression as in Sections 3.1 and 4.1 and Appendix A."""

from typing import Any

import equinox as eqx
from jaxtyping import Array, Key

from pinfactory import SpecialistClassifier, SpecialistRegressor, networks

COMMITTEE: dict[str, Any] = {
    # "a two-layer MLP with 10 units each and tanh non-linearities"
    "selector": "mlp",
    "selector_hidden": (10, 10),
    # "Adam with a learning rate of 3e-4 with mini-batch sizes of 32 [...] for 10000 episodes"
    "learning_rate": 3e-4,
    "batch_size": 32,
    "max_iter": 10_000,
    # J with one sampled expert for each input (Section 3.3)
    "objective": "free_energy",
    "expectation": "sampled",
    # Not given for these figures; those of Figure 6, the closest to what is printed elsewhere.
    "beta_selector": 25.0,
    "beta_expert": 2.5,
    # λ₂ and λ₁, not given either.
    "momentum_selector": 0.99,
    "momentum_expert": 0.99,
    # Nothing of ours.
    "start": "random",
    "n_init": 1,
    "early_stopping": False,
    "standardise": False,
    "averaging": False,
}


def linear(inputs: int, outputs: int, *, key: Key[Array, ""]) -> networks.Network:
    """Build an expert's response as Appendix A prints it: ω'x, without an intercept."""
    network = networks.linear(inputs, outputs, key=key)
    return eqx.tree_at(lambda n: n.bias, network, None, is_leaf=lambda leaf: leaf is None)


def classifier(
    n_experts: int = 4, *, intercept: bool = True, **changes: Any
) -> SpecialistClassifier:
    """Return the paper's committee of linear classifiers.

    Parameters
    ----------
    n_experts
        How many experts.
    intercept
        Whether experts have one. Appendix A prints y = ω'x without; we read x with a constant.
    changes
        Other settings of `SpecialistClassifier`.
    """
    expert = "linear" if intercept else linear
    return SpecialistClassifier(n_experts, **(COMMITTEE | {"expert": expert} | changes))


def regressor(n_experts: int = 4, *, intercept: bool = True, **changes: Any) -> SpecialistRegressor:
    """Return the paper's committee of local linear regressions; arguments as in `classifier`.

    The utility is minus the squared error, expected over the Gaussian answer (Section 3.1).
    """
    settings = {"utility": "squared_error", "expert": "linear" if intercept else linear}
    return SpecialistRegressor(n_experts, **(COMMITTEE | settings | changes))
