"""What the paper compares with, usable on its own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapted import AdaptedBaseline
    from .gradient import ANIL, MAML
    from .metric import MatchingNetworks, PrototypicalNetworks
    from .pretraining import PreTraining
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
    "ANIL": "gradient",
    "AdaptedBaseline": "adapted",
    "MAML": "gradient",
    "MatchingNetworks": "metric",
    "PreTraining": "pretraining",
    "PrototypicalNetworks": "metric",
    "GrBAL": "rl_model",
    "MAMLPolicy": "rl_gradient",
    "ProMP": "rl_gradient",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
