"""What the paper compares with, usable on its own."""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

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

__getattr__, __dir__ = attach(
    __name__,
    {
        ".adapted": "AdaptedBaseline",
        ".gradient": "ANIL MAML",
        ".metric": "MatchingNetworks PrototypicalNetworks",
        ".pretraining": "PreTraining",
        ".rl_gradient": "MAMLPolicy ProMP",
        ".rl_model": "GrBAL",
    },
)
