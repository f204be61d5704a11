"""The settings of JAX that the library computes with, and its cache of compiled programs.

Importing the library changes nothing. While one of its learners computes, JAX has the settings
that the library is written for, whatever the process has chosen; afterwards it has its own again.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import jax

Function = TypeVar("Function", bound=Callable[..., Any])

# Set to "off", or to a folder other than the user's cache.
CACHE_VARIABLE = "PINFACTORY_COMPILATION_CACHE"
# Programs that compile faster are not worth a file; the oldest go when all take more room.
_SHORTEST_SECONDS, _MOST_BYTES = 0.01, 2 * 10**9


@contextmanager
def library_settings() -> Iterator[None]:
    """Compute in single precision, with arrays of different rank broadcast against each other."""
    enable_compilation_cache()
    with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
        yield


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
        _prune(folder)
    except OSError:
        # A home that cannot be written to is no reason not to compute.
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST_SECONDS)
    return folder


def _prune(folder: Path) -> None:
    """Delete the oldest programs until the rest takes at most the room there is."""
    files = sorted((f.stat().st_mtime, f.stat().st_size, f) for f in folder.iterdir())
    excess = sum(size for _, size, _ in files) - _MOST_BYTES
    for _, size, file in files:
        if excess <= 0:
            break
        file.unlink(missing_ok=True)
        excess -= size
