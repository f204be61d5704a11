"""Many trainings: side by side in one program, on local processes, or on a cluster.

`sweep` evaluates a function or an estimator at every point of a grid and keeps what is done. The
parts it is made of serve experiments too.
"""

from typing import TYPE_CHECKING

from pinfactory.lazy import attach

if TYPE_CHECKING:
    from ._sweep import sweep
    from .collecting import Failure, SweepError, SweepResult

__all__ = ["Failure", "SweepError", "SweepResult", "sweep"]

# Not all processes of a sweep need scikit-learn and JAX.
__getattr__, __dir__ = attach(
    __name__,
    {
        "._sweep": "sweep",
        ".collecting": "Failure SweepError SweepResult",
    },
)
