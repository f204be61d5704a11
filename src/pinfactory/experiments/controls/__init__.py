"""What else could explain a committee's gain: simpler, larger or unpriced models.

Committees in which one of the two stages can do less or more, and models without prices: a softmax
mixture of linear experts by Adam, with the network of the paper's selector; the same with the
load-balancing loss of switch transformers; a hierarchical mixture of linear experts by EM; and one
dense network with as many parameters as the softmax mixture, trained the same way. Controls of
agents and of curves have modules of their own, so that no other figure depends on their learners.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pinfactory import SpecialistClassifier, SpecialistRegressor

from .densities import DENSITY_CONTROLS, fit_density_control
from .em_mixture import EMMixture
from .gradient_mixtures import DenseNetwork, SoftmaxMixture

_COMMITTEES: dict[str, dict[str, Any]] = {
    "constant experts": {"expert": "constant"},
    "linear selector": {"selector": "linear"},
    "network selector": {"selector": "mlp"},
}
_MODELS: dict[str, Callable[[int, bool, int], Any]] = {
    "softmax mixture": SoftmaxMixture,
    "load-balanced mixture": partial(SoftmaxMixture, balance=0.01),
    "hierarchical mixture by EM": EMMixture,
    "dense network": DenseNetwork,
}
CONTROLS = (*_COMMITTEES, *_MODELS)


def control(name: str, n_experts: int, classify: bool, seed: int) -> Any:
    """Return an untrained control of a committee with so many experts, at default settings."""
    if name in _MODELS:
        return _MODELS[name](n_experts, classify, seed)
    kind = SpecialistClassifier if classify else SpecialistRegressor
    return kind(n_experts, random_state=seed, **_COMMITTEES[name])


def split_controls(results: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the pieces of a figure, and apart from them those of its controls."""
    controls = {name: piece for name, piece in results.items() if "control" in piece}
    return {name: piece for name, piece in results.items() if name not in controls}, controls


__all__ = [
    "CONTROLS",
    "DENSITY_CONTROLS",
    "DenseNetwork",
    "EMMixture",
    "SoftmaxMixture",
    "control",
    "fit_density_control",
    "split_controls",
]
