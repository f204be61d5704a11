"""The kernels of a program and the time each takes, from XLA's own trace."""

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax

# What only calls other kernels, by the beginnings of their names.
_CALLERS = ("while", "call", "conditional", "cond")
# Products of matrices and convolutions, as XLA and its libraries name them.
_PRODUCTS = ("dot", "ynn", "convolution", "custom-call")


def trace_kernels(run: Callable[[], Any]) -> dict[str, list[float]]:
    """Return how often each kernel was called while a function ran, and its seconds."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            run()
        (file,) = Path(folder).rglob("*.xplane.pb")
        trace = jax.profiler.ProfileData.from_file(str(file))
    found: dict[str, list[float]] = {}
    for event in (e for plane in trace.planes for line in plane.lines for e in line.events):
        if "hlo_op" in dict(event.stats) and not event.name.startswith(_CALLERS):
            kernel = found.setdefault(event.name, [0.0, 0.0])
            kernel[0] += 1.0
            kernel[1] += 1e-9 * event.duration_ns
    return found


def share_of_products(kernels: Mapping[str, list[float]]) -> float:
    """Return the share of the kernels' time that products of matrices take."""
    products = (seconds for name, (_, seconds) in kernels.items() if name.startswith(_PRODUCTS))
    return sum(products) / sum(seconds for _, seconds in kernels.values())
