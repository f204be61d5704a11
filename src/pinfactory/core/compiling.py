"""How functions are compiled for the processor.

XLA runs a program on the processor as a list of kernels, and starting each costs as much as some
hundred multiplications. A step of a small committee is a list of ninety. A loop that accesses few
bytes XLA can compile into a single kernel instead; by default few means a thousand, which no
learning step is.
"""

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import equinox as eqx

Function = TypeVar("Function", bound=Callable[..., Any])

# A step of the paper's committees on its synthetic tasks accesses some 200,000 bytes. Inside a
# kernel matrices are multiplied by plain loops, which is why larger steps are better off outside.
FEW_BYTES = 262_144


def with_small_loops(flags: str) -> str:
    """Return XLA's flags with the one that makes small loops single kernels.

    Flags that set options of this kind already are left as they are.
    """
    if "--xla_backend_extra_options" in flags:
        return flags
    option = f"xla_cpu_small_while_loop_byte_threshold={FEW_BYTES}"
    return f"{flags} --xla_backend_extra_options={option}".strip()


# The compiler has no other place for this option than the environment, and reads it once, when JAX
# first computes something.
os.environ["XLA_FLAGS"] = with_small_loops(os.environ.get("XLA_FLAGS", ""))


def compiled(function: Function) -> Function:
    """Compile a function of many small operations.

    On a CPU those run as fast as with the full effort of the compiler, or faster, and compile in
    half the time.
    """
    return _compiled(function, {})


def compiled_as_kernel(function: Function) -> Function:
    """Compile a function whose loops are so small that each may become a single kernel.

    Matrices are then multiplied by the kernel itself: by XLA's library a loop stays a list.
    """
    return _compiled(function, {"xla_cpu_experimental_ynn_fusion_type": ""})


def _compiled(function: Function, options: dict[str, Any]) -> Function:
    settings: Any = {"compiler_options": {"xla_backend_optimization_level": 1} | options}
    return cast(Function, eqx.filter_jit(function, **settings))
