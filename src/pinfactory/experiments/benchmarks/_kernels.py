"""What XLA says of a program: its costs, its kernels and the time each takes."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

# What XLA counts, by its names.
_COUNTED = {"flops": "flops", "functions": "transcendentals", "bytes": "bytes accessed"}
# What only calls other kernels, by the beginnings of their names.
_CALLERS = ("while", "call", "conditional", "cond")
# Kernels by what they do, as XLA and its libraries name them: products of matrices and
# convolutions, and what only moves numbers to another place.
KINDS = {
    "products": ("dot", "ynn", "convolution", "custom-call"),
    "copies": ("copy", "transpose", "concatenate", "slice", "pad", "bitcast_gather", "gather"),
}


def count_costs(program: ClosedJaxpr) -> dict[str, float]:
    """Return operations, transcendental functions and bytes of a program."""
    total = count_once(program)
    for length, body in _loops(program.jaxpr):
        once, all_of_it = count_once(body), count_costs(body)
        total = {name: n + length * all_of_it[name] - once[name] for name, n in total.items()}
    return total


def count_once(program: ClosedJaxpr) -> dict[str, float]:
    """Return XLA's own counts: what is inside a loop counts once, however often it runs."""
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in program.in_avals]
    found: Any = jax.jit(jaxpr_as_fun(program)).lower(*shapes).compile().cost_analysis()
    return {name: float(found.get(told, 0.0)) for name, told in _COUNTED.items()}


def _loops(program: Jaxpr) -> Iterator[tuple[int, ClosedJaxpr]]:
    """Yield how often each outermost loop of known length runs, and what it does."""
    for equation in program.eqns:
        if equation.primitive.name == "scan":
            yield equation.params["length"], equation.params["jaxpr"]
            continue
        parts: list[Any] = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
        for part in filter(_is_program, parts):
            yield from _loops(part.jaxpr if isinstance(part, ClosedJaxpr) else part)


def _is_program(part: Any) -> bool:
    return isinstance(part, Jaxpr | ClosedJaxpr)


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


def shares(kernels: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the share of the kernels' time that each kind takes."""
    total = sum(seconds for _, seconds in kernels.values())
    return {
        kind: sum(s for name, (_, s) in kernels.items() if name.startswith(beginnings)) / total
        for kind, beginnings in KINDS.items()
    }
