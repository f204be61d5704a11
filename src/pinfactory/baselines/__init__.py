"""What the paper compares with, usable on its own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._adapted import AdaptedBaseline
    from ._gradient import ANIL, MAML
    from ._metric import MatchingNetworks, PrototypicalNetworks
    from ._pretraining import PreTraining
    from .rl_gradient import MAMLPolicy, ProMP
    from .rl_model import GrBAL

__all__ = [
    "ANIL",
    "MAML",
    "AdaptedBaseline",
    "GrBAL",
    "MAMLPolicy",
    "MatchingNetworks",
    "PreTraining",
    "ProMP",
    "PrototypicalNetworks",
]

_HOMES = {
    "ANIL": "_gradient",
    "AdaptedBaseline": "_adapted",
    "MAML": "_gradient",
    "MatchingNetworks": "_metric",
    "PreTraining": "_pretraining",
    "PrototypicalNetworks": "_metric",
    "GrBAL": "rl_model",
    "MAMLPolicy": "rl_gradient",
    "ProMP": "rl_gradient",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
