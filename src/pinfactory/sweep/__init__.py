"""Many trainings: side by side in one program, on local processes, or on a cluster.

`sweep` evaluates a function or an estimator at every point of a grid and keeps what is done. The
parts it is made of serve experiments too.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._sweep import sweep
    from .collecting import Failure, SweepError, SweepResult

__all__ = ["Failure", "SweepError", "SweepResult", "sweep"]


def __getattr__(name: str) -> Any:
    """Import scikit-learn and JAX only where a sweep is made, not in all of its processes."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _sweep, collecting

    return getattr(_sweep if name == "sweep" else collecting, name)
