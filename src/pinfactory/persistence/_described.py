"""Values as text that is the same in every process, and another for another value."""

import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Mapping
from types import CodeType
from typing import Any

import jax
import numpy as np

_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


def fingerprint(*arrays: Any) -> str:
    """Return 16 hexadecimal digits that tell arrays of other values, shapes or types apart."""
    digest = hashlib.sha256()
    for array in map(np.asarray, arrays):
        digest.update(repr((array.dtype.str, array.shape)).encode())
        # What objects hold is known by what they say they are.
        plain = array.astype(str) if array.dtype.hasobject else array
        digest.update(np.ascontiguousarray(plain).tobytes())
    return digest.hexdigest()[:16]


def described(value: Any, within: tuple[int, ...] = ()) -> str:
    """Return what a value is made of, without an address.

    Arrays are known by their fingerprint, functions by what they are called, and other objects by
    what they say of themselves. `within` is what the value is a part of.
    """
    if id(value) in within:
        return "…"
    within = (*within, id(value))
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray | jax.Array):
        is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
        return f"array {fingerprint(jax.random.key_data(value) if is_key else value)}"
    if isinstance(value, np.random.RandomState):
        return f"RandomState {fingerprint(repr(value.get_state(legacy=False)))}"
    if isinstance(value, np.random.Generator):
        return f"Generator {fingerprint(repr(value.bit_generator.state))}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
        return f"{dotted_name(type(value))}{described(parts, within)}"
    if isinstance(value, Mapping):
        return _listed(
            "{}", (f"{described(k, within)}: {described(v, within)}" for k, v in value.items())
        )
    if isinstance(value, tuple | list):
        return _listed(
            "()" if isinstance(value, tuple) else "[]", (described(v, within) for v in value)
        )
    if isinstance(value, set | frozenset):
        return _listed("{}", sorted(described(v, within) for v in value))
    if callable(value):
        return dotted_name(value, within)
    said = (text for text in (repr(value), str(value)) if not _ADDRESS.search(text))
    return next(said, dotted_name(value))


def dotted_name(function: Any, within: tuple[int, ...] = ()) -> str:
    """Return what a function, class or object with a call is called, with its module.

    A `partial` is called by its arguments, too. A function inside of another, or without a name, is
    known by a fingerprint of its code and of what it uses of the function around it.
    """
    if isinstance(function, functools.partial):
        parts = (function.func, *function.args, function.keywords)
        return f"partial{described(parts, within)}"
    if inspect.ismethod(function):
        return f"{described(function.__self__, within)}.{function.__name__}"
    named = function if hasattr(function, "__qualname__") else type(function)
    name = f"{named.__module__}.{named.__qualname__}"
    if inspect.isfunction(function) and "<" in name:
        used = inspect.getclosurevars(function).nonlocals
        made = (_code(function.__code__), function.__defaults__, function.__kwdefaults__, used)
        return f"{name} {fingerprint(described(made, within))}"
    return name


def _code(code: CodeType) -> str:
    """Return the operations of a function, its constants and the names it uses."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return repr((code.co_code, constants, code.co_names))


def _listed(brackets: str, parts: Any) -> str:
    return f"{brackets[0]}{', '.join(parts)}{brackets[1]}"
