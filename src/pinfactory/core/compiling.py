"""How JAX computes for the library: its settings, its cache of programs, and how they are compiled.

Importing the library changes nothing. While one of its learners computes, JAX has the settings
that the library is written for, whatever the process has chosen; afterwards it has its own again.

XLA runs a program on the processor as a list of kernels, and starting each costs as much as some
hundred multiplications. A step of a small committee is a list of ninety. A loop of such steps runs
several times as fast when it is compiled into a single kernel.
"""

import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

Function = TypeVar("Function", bound=Callable[..., Any])

# Set to "off", or to a folder other than the user's cache.
CACHE_VARIABLE = "PINFACTORY_COMPILATION_CACHE"
# Programs that compile faster are not worth a file; the oldest go when all take more room.
_SHORTEST_SECONDS, _MOST_BYTES = 0.01, 2 * 10**9
# Files of the last day are looked at where it is not known which were looked at before.
_MOST_SECONDS_BACK = 86_400.0
_ZSTANDARD = b"\x28\xb5\x2f\xfd"

# Options of XLA that shorten compilation, and leave programs as fast as they are.
LOW_EFFORT: dict[str, Any] = {"xla_backend_optimization_level": 1}
# The same for small programs. Without fusion emitters long loops take half as long again.
QUICK = dict(LOW_EFFORT)
if jax.__version_info__ < (0, 11):  # later ones may not know it, and end at what they do not know
    QUICK["xla_cpu_use_fusion_emitters"] = False

# The attributes by which XLA's compiler for processors marks a call that becomes one kernel. It
# sets them itself for loops that access at most a kilobyte. Other platforms ignore them.
ONE_KERNEL = {"xla_cpu_small_call": "true", "inlineable": "false"}

# Operations that may be inside a kernel, by their names in a jaxpr.
_NAMES = """
    abs add add_any and argmax argmin bitcast_convert_type broadcast_in_dim cbrt ceil clamp
    concatenate cond convert_element_type copy copy_p cos cosh custom_jvp_call custom_vjp_call div
    dot_general dynamic_slice dynamic_update_slice eq erf erf_inv erfc exp exp2 expand_dims expm1
    floor gather ge gt integer_pow iota is_finite jit le log log1p logistic lt max min mul ne neg
    not or pad pjit pow random_bits random_fold_in random_split random_unwrap random_wrap
    reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum rem reshape rev round rsqrt
    scan select_n shift_left shift_right_arithmetic shift_right_logical sign sin sinh
    slice split sqrt square squeeze stack stop_gradient sub tan tanh threefry2x32 transpose while
    xor
"""
SIMPLE = frozenset(_NAMES.split())

# So many programs, of about 7 MB each with what led to them, are kept of all functions together.
MOST_PROGRAMS = 100
_bounded: list[Any] = []


# ----------------------------------------------------------------------------- settings and cache


@contextmanager
def library_settings() -> Iterator[None]:
    """Compute in single precision, with arrays of different rank broadcast against each other."""
    if _first_process() != os.getpid():
        raise RuntimeError(
            "This process was forked from one in which a learner had computed. JAX would wait for "
            "threads that it does not have: start processes with "
            "multiprocessing.get_context('spawn'), or fork before anything is computed."
        )
    enable_compilation_cache()
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield
    forget_programs()


@cache
def _first_process() -> int:
    """Return the process that asked first: this one, or the one that it was forked from."""
    return os.getpid()


def with_library_settings(function: Function) -> Function:
    """Make a function compute with the settings of the library."""

    @wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with library_settings():
            return function(*arguments, **named)

    return cast(Function, wrapped)


def cache_directory() -> Path:
    """Return the folder where the library keeps what it can make again."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "pinfactory"


@cache
def enable_compilation_cache() -> Path | None:
    """Let JAX keep compiled programs on disk, unless somebody has decided about that already.

    Returns
    -------
    Path or None
        The folder; None if it was left as it is, or `PINFACTORY_COMPILATION_CACHE` is "off".
    """
    wish = os.environ.get(CACHE_VARIABLE, "")
    if wish == "off" or jax.config.values["jax_compilation_cache_dir"] is not None:
        return None
    folder = Path(wish) if wish else cache_directory() / f"programs-{jax.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _drop_damaged(folder)
        _prune(folder)
    except OSError:
        # A home that cannot be written to is no reason not to compute.
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)
    return folder


def _drop_damaged(folder: Path) -> None:
    """Delete programs that are not whole; each is looked at once.

    JAX writes a file in place and never again. What a process that was killed has begun, every
    later one would read in vain, with a warning.
    """
    # What another process may be writing is left to the next time.
    stamp, until = folder / "checked", time.time() - 60.0
    since = stamp.stat().st_mtime if stamp.exists() else until - _MOST_SECONDS_BACK
    for changed, _, file in _programs(folder):
        if since <= changed < until and not _is_whole(file):
            file.unlink(missing_ok=True)
    stamp.touch()
    os.utime(stamp, (until, until))


def _is_whole(file: Path) -> bool:
    """Return whether a program can be decompressed."""
    try:
        content = file.read_bytes()
        # Where another library is installed JAX uses that one, which is not asked here.
        return content.startswith(_ZSTANDARD) or len(zlib.decompress(content)) > 0
    except (zlib.error, OSError):
        return False


def _prune(folder: Path) -> None:
    """Delete the oldest programs until the rest takes at most the room there is."""
    files = sorted(_programs(folder))
    excess = sum(size for _, size, _ in files) - _MOST_BYTES
    for _, size, file in files:
        if excess <= 0:
            break
        file.unlink(missing_ok=True)
        excess -= size


def _programs(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield time, size and path of each file; other processes may delete them meanwhile."""
    for file in folder.glob("*-cache"):
        with suppress(FileNotFoundError):
            status = file.stat()
            yield status.st_mtime, status.st_size, file


# ------------------------------------------------------------------------------------ compilation


def bounded(function: Function) -> Function:
    """Let `forget_programs` bound how many programs a function of JAX or Equinox keeps."""
    # Equinox has no way to drop the programs of one function; JAX's function inside has.
    _bounded.append(getattr(function, "_cached", function))
    return function


def forget_programs() -> None:
    """Drop the programs of all functions once there are more than may be kept.

    JAX would keep them for ever. What is needed again is mostly read from the cache on disk. All
    go at once: if only some did, those that stay would be larger and larger ones.
    """
    if sum(function._cache_size() for function in _bounded) > MOST_PROGRAMS:
        for function in _bounded:
            function.clear_cache()


def compiled_fully(function: Function) -> Function:
    """Compile a function with the full effort of the compiler, for large operations."""
    return cast(Function, bounded(eqx.filter_jit(function)))


def compiled(function: Function) -> Function:
    """Compile a function of many small operations.

    On a CPU those run as fast as with the full effort of the compiler, or faster, and compile in
    a quarter of the time. What `XLA_FLAGS` names stands.
    """
    return _compiled(function, QUICK)


def compiled_for_long(function: Function) -> Function:
    """Compile a function of many small operations that takes many gradient steps at each call.

    It runs in two thirds of the time of one that is `compiled`, and compiles in up to twice of it.
    """
    return _compiled(function, LOW_EFFORT)


def compiled_with_kernels(function: Function) -> Function:
    """Compile a function so that its own loops multiply matrices, not XLA's library.

    The library would break up the parts that `one_kernel` marks, and for matrices of a few columns
    its calls take longer than the loops.
    """
    return _compiled(function, QUICK, xla_cpu_experimental_ynn_fusion_type="")


def even_batch(n: int, most: int) -> int:
    """Return the largest divisor of n in reach: a map would compile a rest as a second program."""
    return next(size for size in range(min(max(most, 1), n), 0, -1) if n % size == 0)


def one_kernel(function: Function) -> Function:
    """Mark a function, as a rule a loop of small steps, to be compiled into a single kernel.

    A function with operations that are not plain arithmetic on arrays is left as it is: XLA hands
    those to libraries, or has not learned to put them into a kernel.
    """

    def marked(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        run = jaxpr_as_fun(program)
        if _is_simple(program.jaxpr):
            # The mark is for the call itself: operations inside keep the context of their tracing.
            with set_xla_metadata(**ONE_KERNEL):
                results = jax.jit(run)(*jax.tree.leaves(arguments))
        else:
            results = run(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return cast(Function, marked)


def _is_simple(jaxpr: Jaxpr) -> bool:
    """Return whether all operations, also those of inner functions, are plain arithmetic."""
    for equation in jaxpr.eqns:
        inner: list[Any] = [
            getattr(part, "jaxpr", part)
            for part in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program)
            if _is_program(part)
        ]
        if equation.primitive.name not in SIMPLE or not all(map(_is_simple, inner)):
            return False
    return True


def _is_program(part: Any) -> bool:
    return isinstance(part, Jaxpr | ClosedJaxpr)


def _compiled(function: Function, defaults: dict[str, Any], **options: Any) -> Function:
    flags = os.environ.get("XLA_FLAGS", "")
    free = {name: value for name, value in defaults.items() if name not in flags}
    settings: Any = {"compiler_options": free | options}
    return cast(Function, bounded(eqx.filter_jit(function, **settings)))
